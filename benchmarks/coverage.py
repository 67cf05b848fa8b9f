"""How many of the live bytes does each tool see, and how many does it name?"""

from __future__ import annotations

import contextlib
import gc
import io
from typing import Any

from benchmarks.fresh import Notebook
from benchmarks.rivals import gc_loop, has_memlab
from benchmarks.tables import Table

KIB = 1 << 10

PLANT = """
import torch, gc
from torch import nn
%load_ext nbinspect
def kib(n, **options):
    return torch.ones(n * 256, **options)
model = nn.Linear(1024, 512, bias=False)
model.register_buffer('mask', kib(96))
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(3, 1024)).sum().backward()
optimizer.step()
# Saved for backward by a graph that a list of losses keeps.
losses = [(kib(224, requires_grad=True) * 2).exp().sum()]
# A row keeps the whole of what it was taken from.
row = kib(288)[:8]
def _closed_over():
    hidden = kib(352)
    return lambda: hidden.sum()
callback = _closed_over()
def _suspended():
    inside = kib(416)
    yield inside.sum()
generator = _suspended()
next(generator)
cache = {'keys': [kib(480)]}
"""
SHOW = "kib(544)"
RAISE = """
def _failing():
    pinned = kib(608)
    raise ValueError('as planted')
try:
    _failing()
except ValueError as error:
    kept_error = error
"""

# What was planted: (what, KiB, kind, a part of the owner's name).
PLANTED = (
    ("parameter", 2048, "PARAMETER", "model.weight"),
    ("its gradient", 2048, "GRADIENT", "model.weight.grad"),
    ("Adam's exp_avg", 2048, "OPTIMIZER_STATE", "['exp_avg']"),
    ("Adam's exp_avg_sq", 2048, "OPTIMIZER_STATE", "['exp_avg_sq']"),
    ("buffer", 96, "BUFFER", "model.mask"),
    ("saved for backward, a leaf", 224, "SAVED_FOR_BACKWARD", "losses[0]"),
    ("saved for backward, inside", 224, "SAVED_FOR_BACKWARD", "losses[0]"),
    ("base of a small view", 288, "VARIABLE", "row"),
    ("closure", 352, "VARIABLE", "callback"),
    ("suspended generator", 416, "FRAME", "generator"),
    ("item of a container", 480, "VARIABLE", "cache['keys'][0]"),
    ("displayed value", 544, "OUT_HISTORY", "Out["),
    ("frame of a kept exception", 608, "TRACEBACK", "kept_error"),
)


def found_by_nbinspect() -> dict[str, Any]:
    """Give (size, kind, owner) of each storage, and the sum of all that are tracked."""
    import nbinspect
    from nbinspect.holders import census

    rows = [(one.size_bytes, one.claims[0].kind, one.claims[0].owner) for one in census().storages]
    return {"rows": rows, "total": nbinspect.gpumem().device("cpu").tracked_bytes}


def found_by_loop() -> dict[str, Any]:
    """Give the sizes of the storages that the loop meets, and the sum that it would print."""
    import torch

    gc_loop()
    met = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in met}
    total = sum(one.numel() * one.element_size() for one in met)
    return {"rows": [(size, "") for size in storages.values()], "total": total}


def found_by_memlab(model: Any) -> dict[str, Any]:
    """Give (size, name) of each storage that MemReporter meets, and the sum that it prints."""
    from pytorch_memlab import MemReporter

    reporter = MemReporter(model)
    reporter.collect_tensor()
    met = [one for tensors in reporter.device_mapping.values() for one in tensors]
    met += [one.grad for one in met if one.is_leaf and one.grad is not None]
    with contextlib.redirect_stdout(io.StringIO()):
        reporter.get_stats()
    named = {
        one.untyped_storage().data_ptr(): (
            one.untyped_storage().nbytes(),
            reporter.tensor_name.get(id(one), ""),
        )
        for one in met
    }
    stats = [stat for each in reporter.device_tensor_stat.values() for stat in each]
    return {"rows": list(named.values()), "total": sum(stat[3] for stat in stats)}


def tables(*, quick: bool) -> list[Table]:  # noqa: ARG001 - every question takes it
    """Plant tensors in a notebook and look for each with each tool."""
    with Notebook() as notebook:
        notebook.run(PLANT)
        notebook.run(SHOW)
        notebook.run(RAISE)
        notebook.run("from benchmarks import coverage")
        # The census last: what it looks at has a Python side from then on, which a loop would see.
        loop = notebook.call("coverage.found_by_loop()")
        memlab = notebook.call("coverage.found_by_memlab(model)") if has_memlab() else None
        ours = notebook.call("coverage.found_by_nbinspect()")
    table = Table(
        "census: who names the live bytes",
        ("planted", "KiB", "gpumem()", "gc loop", "MemReporter(model)"),
    )
    sums = [0, 0, 0]
    for what, kib, kind, owner in PLANTED:
        cells = (_ours(ours, kib, kind, owner), _seen(loop, kib), _seen(memlab, kib))
        for number, cell in enumerate(cells):
            sums[number] += kib if cell.startswith("named") else 0
        table.add(what, f"{kib:,}", *cells)
    _add_sums(table, sums, ours, loop, memlab)
    return [table]


def _ours(found: dict[str, Any], kib: int, kind: str, owner: str) -> str:
    for row in found["rows"]:
        if row[0] == kib * KIB and row[1] == kind and owner in row[2]:
            found["rows"].remove(row)
            return f"named {kind} {row[2]}"
    sizes = [row for row in found["rows"] if row[0] == kib * KIB]
    return f"MISNAMED {' '.join(sizes[0][1:])}" if sizes else "NOT SEEN"


def _seen(found: dict[str, Any] | None, kib: int) -> str:
    """Take the named one first where several storages have this size."""
    if found is None:
        return "not installed"
    rows = [row for row in found["rows"] if row[0] == kib * KIB]
    rows.sort(key=lambda row: _is_number_name(row[1]))
    if not rows:
        return "not seen"
    found["rows"].remove(rows[0])
    name = rows[0][1]
    if not name:
        return "seen, no name"
    return f"seen as {name}" if _is_number_name(name) else f"named {name}"


def _is_number_name(name: str) -> bool:
    return not name or name.rstrip("0123456789") in {"Tensor", "Parameter"}


def _add_sums(table: Table, sums: list[int], *found: dict[str, Any] | None) -> None:
    planted = sum(row[1] for row in PLANTED)
    shares = (f"{part / planted:.0%}" for part in sums)
    table.add("named, of all planted bytes", f"{planted:,}", *shares)
    totals = (f"{one['total'] / KIB:,.0f} KiB" if one else "not installed" for one in found)
    table.add("the sum it shows, small tensors too", "", *totals)
    table.notes += [
        (
            "Named: a holder that leads to the tensor from a name of the notebook, under the right "
            "kind. A loop over gc has no names to give."
        ),
        "MemReporter multiplies bytes by the size of an element: 4 MiB of float32 read 16.00M.",
        "The same tensors each time, so there is no noise here.",
    ]
