"""Made-up views that look like the real ones."""

from __future__ import annotations

from nbinspect.blocks import (
    Advice,
    Band,
    Bar,
    Code,
    Column,
    Fold,
    Histogram,
    Mark,
    Segment,
    Size,
    Table,
    Text,
    Timeline,
    Unavailable,
    View,
)

MIB = 1024**2
GIB = 1024**3
WEIGHT = "model.transformer.h.11.attn.c_attn.weight"


def snapshot() -> View:
    """What `%gpumem` shows: a headline, bars, the largest holders, advice, small print."""
    return (
        Text(
            (
                "Tensors hold ",
                Size(5 * GIB + 180 * MIB),
                " on cuda:0; most of it is the optimizer state of ",
                Code("optimizer"),
                ".",
            ),
            "headline",
        ),
        _tensors_bar(),
        Bar(
            "cuda:0 memory",
            (
                Segment("tensors", 5 * GIB + 180 * MIB, "ALLOCATED"),
                Segment("cached, free for reuse", 870 * MIB, "CACHED"),
                Segment("CUDA context and other processes", 612 * MIB, "OTHERS"),
                Segment("free", 24 * GIB - 5 * GIB - 1662 * MIB, "FREE"),
            ),
            24 * GIB,
            "of 24.0 GiB on this card",
        ),
        Bar(
            "cpu",
            (
                Segment("variables", 47 * MIB + 512 * 1024, "VARIABLE"),
                Segment("data loader", 12 * MIB, "DATALOADER"),
                Segment("frames", 900_000, "FRAME"),
            ),
        ),
        _holders(),
        Advice(
            (
                "The graph of 100 losses is kept by ",
                Code("losses"),
                ": each saved the activations of its step.",
            ),
            "losses = [loss.detach() for loss in losses]",
            402 * MIB,
        ),
        Advice(
            (Code("row"), " uses 0.1 % of the ", Size(256 * MIB), " that it keeps."),
            "row = row.clone()",
            255 * MIB,
        ),
        Advice(
            ("The last exception keeps what In[7] had in its frames.",), "%traceback_memory --drop"
        ),
        Fold("What is not known: 2 readings", _small_print()),
    )


def _tensors_bar() -> Bar:
    return Bar(
        "cuda:0",
        (
            Segment("parameters", 1_336 * MIB, "PARAMETER"),
            Segment("buffers", 48 * MIB, "BUFFER"),
            Segment("gradients", 668 * MIB, "GRADIENT"),
            Segment("optimizer state", 2_672 * MIB, "OPTIMIZER_STATE"),
            Segment("saved for backward", 402 * MIB, "SAVED_FOR_BACKWARD"),
            Segment("Out history", 174 * MIB, "OUT_HISTORY"),
        ),
        note="held by 1 204 tensors",
    )


def _holders() -> Table:
    state = f"optimizer.state[{WEIGHT}]"
    rows = (
        ("OPTIMIZER_STATE", f"{state}['exp_avg']", 700 * MIB, 1, None),
        ("OPTIMIZER_STATE", f"{state}['exp_avg_sq']", 700 * MIB, 1, None),
        ("PARAMETER", WEIGHT, 668 * MIB, 1, "FRAME train() In[7] line 12"),
        ("SAVED_FOR_BACKWARD", "losses[0..99]", 402 * MIB, 1_900, "saved by ReluBackward0"),
        ("GRADIENT", f"{WEIGHT}.grad", 334 * MIB, 1, None),
        ("OUT_HISTORY", "Out[4]", 174 * MIB, 1, "also _4"),
        ("BUFFER", "model.transformer.h.11.attn.bias", 48 * MIB, 12, None),
        ("VARIABLE", "cache['k'][3]", 47 * MIB, 2, None),
        ("TRACEBACK", "sys.last_value", 12 * MIB, 3, None),
        ("OTHER", "held by C++ alone", 900, 1, None),
    )
    columns = (
        Column("Holder", "kind"),
        Column("Name", "name"),
        Column("Size", "bytes"),
        Column("Tensors", "count"),
        Column("Note"),
    )
    return Table(columns, rows, "Largest holders", 14, 3 * MIB + 77)


def _small_print() -> View:
    return (
        Text(("Other processes: NVML is not there.",), "note"),
        Text(("Workspaces of cuBLAS and cuDNN do not show as tensors.",), "note"),
    )


def sawtooth(n_steps: int) -> Timeline:
    """Ten training steps: memory rises in the forward pass, falls in the backward pass."""
    period = n_steps / 10
    sizes = []
    for i in range(n_steps):
        phase = (i % period) / period
        rise = phase / 0.5 if phase < 0.5 else (1 - phase) / 0.5
        sizes.append(int((1.1 + 2.6 * rise) * GIB) + (i * 7919 % 13) * MIB)
    at = int(n_steps * 0.75)
    sizes[at] = int(4.1 * GIB)
    times = tuple(4.2 * i / n_steps for i in range(n_steps))
    return Timeline(
        "cuda:0: bytes held by tensors",
        times,
        tuple(sizes),
        (Mark(times[at], sizes[at], "peak, In[7] line 3"),),
        int(1.1 * GIB),
    )


def report() -> View:
    """What `%%memwatch` shows: the peak, the timeline, bytes per line, what stayed."""
    line = "hidden = torch.relu(model.encoder(batch['input_ids'], attention_mask=batch['mask']))"
    columns = (
        Column("Line"),
        Column("Code", "code"),
        Column("Allocated", "bytes"),
        Column("At peak", "percent"),
        Column("Stayed", "bytes"),
    )
    rows = (
        ("In[7] line 3", line, 3 * GIB, 0.62, 0),
        ("In[7] line 4", "loss.backward()", GIB, 0.334, 668 * MIB),
        ("train.py:12", "optimizer.step()", 12 * MIB, 0.0004, Unavailable("freed in C++")),
    )
    return (
        Text(
            ("The peak is ", Size(int(4.1 * GIB)), ", ", Size(3 * GIB), " above before."),
            "headline",
        ),
        Text(("The cell ended with ", Code("RuntimeError"), " after 4.2 s."), "action"),
        sawtooth(3000),
        Table(columns, rows, "Lines that allocated"),
        Text(("Counted in the op stream: a convolution's workspace does not show.",), "note"),
        Fold(
            "Modules: 0 allocated",
            (Table((Column("Module", "name"), Column("Size", "bytes")), ()),),
        ),
        Fold("Everything that stayed: 10 holders, 3.02 GiB", (_holders(),)),
    )


def labelled(label: str) -> View:
    """Every block kind, with `label` wherever a label can come from the user's program."""
    columns = tuple(
        Column(label, kind)
        for kind in ("text", "name", "code", "kind", "bytes", "count", "percent")
    )
    row = (label, label, label, label, 1024, 3, 0.5)
    missing = (Unavailable(label), None, label, label, Unavailable(label), None, Unavailable(label))
    mark = Mark(1.0, 20, label)
    bands = (Band(label, -9, -1, faint=True), Band(label, -1, 2))
    return (
        Text((label, Code(label), Size(12)), "headline"),
        Text((label,), "action"),
        Advice((label, Code(label)), label, 7),
        Bar(label, (Segment(label, 10, "PARAMETER"), Segment(label, 5, label)), 20, label),
        Table(columns, (row, missing), label, 2, 9),
        Timeline(label, (0.0, 1.0, 2.0), (10, 20, 5), (mark,), 10),
        Histogram(label, -2, (1, 0, 40, 7, 2), ((-1, label), (2, label)), bands, -1, 2),
        Fold(label, (Text((label,)),)),
    )
