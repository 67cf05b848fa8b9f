"""What does `%%gradwatch` add to a training step, beside the hooks that log gradients elsewhere?"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib.metadata
import importlib.util
import itertools
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn

from benchmarks.fresh import in_process
from benchmarks.models import Training, gpt2
from benchmarks.tables import Spread, Table, ratios

LARGE, SMALL = "MLP of 10 ms, 0.6 M weights", "MLP of 10 ms, 0.13 M weights"
GOALS = {"GPT-2, 4 layers": 1.08, LARGE: 1.12, SMALL: 1.12}
BINS = 64
BATCH = 32  # steps that a watch packs at once, so that a block of as many pays for it once


def mlp(width: int, n_rows: int) -> Training:
    """Four linear layers, 784 to 10: some 10 ms a step, more of it weights or more of it rows."""
    layers: list[nn.Module] = []
    for n_in, n_out in ((784, width), (width, width), (width, width)):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    return Training(model, optimizer, torch.randn(n_rows, 784), torch.randint(0, 10, (n_rows,)))


MODELS: dict[str, Callable[[], Training]] = {
    "GPT-2, 4 layers": gpt2,
    LARGE: partial(mlp, 384, 256),
    SMALL: partial(mlp, 128, 1024),
}


def gradwatch(_training: Training) -> AbstractContextManager[Any]:
    """Watch every column of every step."""
    import nbinspect

    return nbinspect.gradwatch()


def gradwatch_hist(_training: Training) -> AbstractContextManager[Any]:
    """Watch every column, and count exponents every 20 steps, as ``--hist`` does."""
    import nbinspect

    return nbinspect.gradwatch(hist=20)


def gradwatch_light(_training: Training) -> AbstractContextManager[Any]:
    """Watch without copies."""
    import nbinspect

    return nbinspect.gradwatch(light=True)


@contextlib.contextmanager
def gradwatch_uncompiled(_training: Training) -> Iterator[None]:
    """Watch every column with NumPy's kernels, as where nbinspect was installed without a compiler."""
    import nbinspect
    from nbinspect.gradients import near
    from nbinspect.gradients.numpy_kernels import NumpyKernels

    with mock.patch.object(near, "kernels", NumpyKernels), nbinspect.gradwatch():
        yield


@contextlib.contextmanager
def histogram_hooks(training: Training) -> Iterator[None]:
    """Hook every parameter as experiment trackers do: a histogram of each gradient, read at once.

    Range and finiteness are looked at first, as a histogram needs both.
    """
    logged: dict[str, tuple[list[float], float, float]] = {}

    def hook(name: str) -> Callable[[torch.Tensor], None]:
        def log(gradient: torch.Tensor) -> None:
            flat = gradient.detach().reshape(-1)
            flat = flat if torch.isfinite(flat).all() else flat[torch.isfinite(flat)]
            low, high = flat.min().item(), flat.max().item()
            counts = torch.histc(flat, bins=BINS, min=low, max=high)
            logged[name] = (counts.tolist(), low, high)

        return log

    handles = [p.register_hook(hook(name)) for name, p in training.model.named_parameters()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def wandb_watch(training: Training) -> Iterator[None]:
    """Have wandb log the histogram of every gradient in each step, to a folder."""
    import wandb

    with tempfile.TemporaryDirectory() as folder:
        settings = wandb.Settings(silent=True, console="off")
        run = wandb.init(mode="offline", dir=folder, settings=settings)
        run.watch(training.model, log="gradients", log_freq=1)
        plain = training.step

        def step() -> None:
            plain()
            run.log({})  # closes wandb's step

        training.step = step  # type: ignore[method-assign]
        try:
            yield
        finally:
            del training.step
            run.unwatch(training.model)
            run.finish()


@contextlib.contextmanager
def cockpit(training: Training) -> Iterator[None]:
    """Train a copy of the model with those of Cockpit's quantities that ours have too, in each step.

    Cockpit takes a context around backward and BackPACK's hooks on every module, so the step is
    written anew.
    """
    from backpack import extend
    from cockpit import Cockpit, quantities
    from cockpit.utils.schedules import linear

    model = extend(copy.deepcopy(training.model))
    optimizer = torch.optim.AdamW(model.parameters())
    whole = extend(nn.CrossEntropyLoss())
    each = nn.CrossEntropyLoss(reduction="none")
    own = (quantities.Loss, quantities.GradNorm, quantities.UpdateSize, quantities.Distance)
    watching = Cockpit(model.parameters(), quantities=[one(linear(1)) for one in own])
    done = itertools.count()

    def step() -> None:
        logits = model(training.inputs)
        loss = whole(logits, training.targets)
        optimizer.zero_grad()
        at = next(done)
        info = {
            "batch_size": len(training.inputs),
            "individual_losses": each(logits, training.targets),
            "loss": loss,
            "optimizer": optimizer,
        }
        with watching(at, info=info), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss.backward(create_graph=watching.create_graph(at))
        optimizer.step()

    training.step = step  # type: ignore[method-assign]
    try:
        yield
    finally:
        del training.step


def tools(model: str) -> dict[str, Callable[[Training], AbstractContextManager[Any]]]:
    """Give the tools that can watch a model: of the rivals those that are installed.

    Cockpit takes the MLPs alone, of whose modules BackPACK knows the rules.
    """
    found = dict(TOOLS)
    if importlib.util.find_spec("wandb") is not None:
        found[WANDB] = wandb_watch
    if importlib.util.find_spec("cockpit") is not None and model.startswith("MLP"):
        found[COCKPIT] = cockpit
    return found


COCKPIT = "Cockpit: loss, norm, update"
WANDB = "wandb.watch(log_freq=1)"
TOOLS: dict[str, Callable[[Training], AbstractContextManager[Any]]] = {
    "%%gradwatch": gradwatch,
    "%%gradwatch --hist": gradwatch_hist,
    "%%gradwatch --light": gradwatch_light,
    "%%gradwatch without a compiler": gradwatch_uncompiled,
    "histogram hook on each parameter": histogram_hooks,
}


def measure(model: str, n_pairs: int, n_steps: int) -> dict[str, Any]:
    """Time blocks of plain steps and of steps under each tool in turn, in one process.

    Returns:
        CPU seconds a step: `plain` and one list for each tool, block by block.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    training = MODELS[model]()
    for _ in range(3):
        training.step()
    own_tools = tools(model)
    figures: dict[str, list[float]] = {name: [] for name in ("plain", *own_tools)}
    gc.disable()
    for _ in range(n_pairs):
        for name, own in figures.items():
            with own_tools[name](training) if name in own_tools else contextlib.nullcontext():
                training.step()  # buffers are made at the first
                start = time.process_time()
                for _ in range(n_steps):
                    training.step()
                own.append((time.process_time() - start) / n_steps)
        gc.collect()
    return figures


def tables(*, quick: bool) -> list[Table]:
    """Measure every tool on both models."""
    table = Table(
        "gradients: a training step under each watch",
        ("model", "tool", "of the plain step", "plain, ms", "goal"),
    )
    for model, goal in GOALS.items():
        n_pairs, n_steps = (2, 1) if quick else (20, 1 if goal < 1.1 else BATCH)
        found = in_process(measure, model=model, n_pairs=n_pairs, n_steps=n_steps)
        plain = Spread.of(found["plain"]).show(1e3, digits=1)
        for tool in tools(model):
            spread = ratios(list(zip(found["plain"], found[tool], strict=True)))
            met = "met" if spread.median <= goal else "MISSED"
            verdict = f"<= {goal}: {met}" if tool == "%%gradwatch" else ""
            table.add(model, tool, spread.show(), plain, "too few steps" if quick else verdict)
    table.notes = [
        (
            "Median [quartiles] of 20 pairs of blocks in turn, each over the plain block of its "
            "round; CPU time, one torch thread, one process a model. %%gradwatch has every column: "
            "norms before and after clipping, largest, mean, spread, zeros, update, cosine, all of them "
            "from whole tensors."
        ),
        (
            f"The hook is written as experiment trackers document it: per parameter a check, a "
            f"range and a histogram of {BINS} bins, read at once. {_rivals()}"
        ),
    ]
    return [table]


def _rivals() -> str:
    """Say which of the tools that are compared elsewhere are here."""
    said = []
    for name in ("wandb", "cockpit-for-pytorch"):
        try:
            said.append(f"{name} {importlib.metadata.version(name)} is installed")
        except importlib.metadata.PackageNotFoundError:
            said.append(f"{name} was not installed")
    if importlib.util.find_spec("cockpit") is not None:
        said.append(
            "Cockpit ran on the MLP alone, since BackPACK, on which it stands, knows no attention, and "
            "with the quantities that both have: its histograms need each sample's gradient"
        )
    return "; ".join(said) + "."
