"""The step taken apart: loader, forward, forward and backward, each repeated alone."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from types import CodeType
from typing import Any

import numpy as np
import psutil
import torch

from nbinspect import _torch, notebook
from nbinspect.blocks import Reading, Unavailable
from nbinspect.leaks.growth import growths, survivors
from nbinspect.leaks.records import Growth, PartGrowth
from nbinspect.leaks.rounds import PINNED, Rounds
from nbinspect.memory.system import proportional_bytes

MOST_BATCHES = 50  # of one pass over the loader
MOST_VALUES = 500
SUSPECTS = {
    "loader": "the loader: its workers, its dataset or pinned memory",
    "forward": "the model or its hooks: it grows without any graph",
    "forward and backward": "gradients or graphs: the forward alone does not grow",
    "whole step": "the loop's own code: lists, loggers, schedulers",
}
WORKERS = (
    "the loader's workers: to read a Python object is to copy its page; keep the dataset in one "
    "array or tensor"
)
WORKER_NOISE = 1 << 20


@dataclass(slots=True)
class Parts:
    """What a training step is made of; None for what was not found."""

    model: torch.nn.Module | None = None
    loader: Iterable[Any] | None = None
    optimizer: torch.optim.Optimizer | None = None

    @classmethod
    def of_function(cls, fn: Callable[[], object], *given: Any) -> Parts:
        """Look among what a function names; what is given comes first."""
        return cls._of(given, _with_callees([fn]))

    @classmethod
    def of_cell(cls, source: str, *given: Any) -> Parts:
        """Look among the notebook's names that a cell, or a function that it calls, uses."""
        namespace = notebook.user_namespace()
        names = [one.id for one in ast.walk(_parsed(source)) if isinstance(one, ast.Name)]
        values = [namespace[name] for name in dict.fromkeys(names) if name in namespace]
        return cls._of(given, _with_callees(values))

    @classmethod
    def _of(cls, given: tuple[Any, ...], values: list[Any]) -> Parts:
        kinds = (torch.nn.Module, torch.utils.data.DataLoader, torch.optim.Optimizer)
        found: list[Any] = [
            one if one is not None else next((v for v in values if isinstance(v, kind)), None)
            for one, kind in zip(given or (None, None, None), kinds, strict=True)
        ]
        return cls(*found)


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:  # written for a shell of another kind
        return ast.Module([], [])


def _with_callees(values: list[Any]) -> list[Any]:
    """Add what the user's own functions among some values name, and so on."""
    found, seen = list(values), set[int]()
    for one in found:  # grows meanwhile
        code = getattr(one, "__code__", None)
        if isinstance(code, CodeType) and id(one) not in seen and len(found) < MOST_VALUES:
            seen.add(id(one))
            if notebook.is_users_file(code.co_filename):
                found += _named(code, one)
    return found


def _named(code: CodeType, fn: Any) -> Iterator[Any]:
    """Yield the values of a function's global names and of its closure's."""
    space = getattr(fn, "__globals__", {})
    yield from (space[name] for name in code.co_names if name in space)
    for cell in getattr(fn, "__closure__", None) or ():
        with suppress(ValueError):  # not set yet
            yield cell.cell_contents


def part_growths(parts: Parts, n: int, whole: tuple[Growth, ...]) -> tuple[PartGrowth, ...]:
    """Repeat the parts that are known, each `n` times, and say which grow.

    Random states, buffers and gradients are put back afterwards. Hooks of the model run.

    Args:
        parts: the model, loader and optimizer.
        n: repetitions of each part.
        whole: what grows when the whole step is repeated.
    """
    rows = [_loader_row(parts, n)] if parts.loader is not None else []
    if parts.model is not None and parts.loader is not None:
        rows.append(_model_row(parts.model, parts.loader, n, "forward"))
        rows.append(_model_row(parts.model, parts.loader, n, "forward and backward"))
    size = sum(one.bytes_per_run for one in whole)
    number = sum(one.tensors_per_run for one in whole)
    holder = whole[0].holder if whole else ""
    suspect = "" if any(row.suspect for row in rows) or not size else SUSPECTS["whole step"]
    if not rows and size:
        suspect = "not told apart: no model and loader were found; pass model=, loader="
    rows.append(PartGrowth("whole step", size, number, None, holder, suspect))
    return tuple(_first_suspect_only(rows))


def _first_suspect_only(rows: list[PartGrowth]) -> Iterator[PartGrowth]:
    """Blame the smallest part that grows: the larger ones contain it."""
    blamed = False
    for row in rows:
        own = row.suspect if not (blamed and row.part == "forward and backward") else ""
        blamed = blamed or (row.part == "forward" and bool(row.suspect))
        yield replace(row, suspect=own)


def _loader_row(parts: Parts, n: int) -> PartGrowth:
    passes = list[tuple[Reading, Reading]]()

    def one_pass() -> None:
        start: Reading = 0
        end: Reading = 0
        for number, batch in enumerate(islice(iter(parts.loader or ()), MOST_BATCHES)):
            del batch
            if number == 0:
                start = _workers_bytes()
        if start:
            end = _workers_bytes()  # before the workers end with their iterator
            passes.append((start, end))

    row = _repeated(one_pass, "loader", n)
    if not passes or not getattr(parts.loader, "num_workers", 0):
        return row
    rises = [
        end - start for start, end in passes if isinstance(start, int) and isinstance(end, int)
    ]
    if not rises:
        unknown = next(one for pair in passes for one in pair if isinstance(one, Unavailable))
        return replace(row, workers_bytes_per_run=unknown)
    growth = max(rises)  # workers that stay have copied most in their first pass
    suspect = row.suspect or (WORKERS if growth > WORKER_NOISE else "")
    return replace(row, workers_bytes_per_run=growth, suspect=suspect)


def _workers_bytes() -> Reading:
    """Sum what this process's children have for themselves, shared pages by their share."""
    sizes = [proportional_bytes(child) for child in psutil.Process().children()]
    unknown = [one for one in sizes if isinstance(one, Unavailable)]
    return unknown[0] if unknown else sum(one for one in sizes if isinstance(one, int))


def _model_row(model: torch.nn.Module, loader: Iterable[Any], n: int, part: str) -> PartGrowth:
    try:
        batch = next(iter(loader))
    except Exception as error:  # the user's own loader
        return _not_run(part, error)

    def forward() -> None:
        with torch.no_grad():
            _call(model, batch)

    def backward() -> None:
        loss = _loss(_call(model, batch))
        if loss is not None and loss.requires_grad:
            loss.backward()
        for one in model.parameters():
            one.grad = None

    with _put_back(model):
        return _repeated(forward if part == "forward" else backward, part, n)


def _call(model: torch.nn.Module, batch: Any) -> Any:
    """Call a model with the inputs of a batch, which stand first in it."""
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    if isinstance(batch, Mapping):
        return model(**{k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()})
    first = batch[0] if isinstance(batch, tuple | list) else batch
    return model(first.to(device) if torch.is_tensor(first) else first)


def _loss(output: Any) -> torch.Tensor | None:
    """Make a number out of an output that has a gradient: its own loss, or the sum of squares."""
    for one in (getattr(output, "loss", None), output, *_members(output)):
        if torch.is_tensor(one) and one.is_floating_point():
            return one.float().square().mean()
    return None


def _members(output: Any) -> Iterable[Any]:
    if isinstance(output, Mapping):
        return output.values()
    return output if isinstance(output, tuple | list) else ()


@contextmanager
def _put_back(model: torch.nn.Module) -> Iterator[None]:
    """Put random states, buffers and gradients back as they were."""
    buffers = [(one, one.detach().clone()) for one in model.buffers()]
    gradients = [(one, one.grad) for one in model.parameters()]
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=()):  # it would warn of more accelerators than one
        elsewhere = _torch.generator_states()
        try:
            for one, _ in gradients:
                one.grad = None
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            _torch.set_generator_states(elsewhere)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            for one, gradient in gradients:
                one.grad = gradient


def _repeated(run: Callable[[], None], part: str, n: int) -> PartGrowth:
    rounds = Rounds()
    try:
        with rounds:
            for _ in rounds.repeat(n + 1):
                run()
        found = growths(
            survivors(rounds.survivors(), rounds.census()), 1, n + 1, rounds.rising_lines(1)
        )
    except Exception as error:  # the user's own code, called in a way that does not suit it
        return _not_run(part, error)
    finally:
        rounds.close()
    size = sum(one.bytes_per_run for one in found)
    holder = found[0].holder if found else ""
    suspect = SUSPECTS[part] if found else ""
    if part == "loader" and any(one.device == PINNED for one in found):
        suspect = "the loader's pinned memory"
    number = sum(one.tensors_per_run for one in found)
    return PartGrowth(part, size, number, None, holder, suspect)


def _not_run(part: str, error: Exception) -> PartGrowth:
    said = f"could not be run alone: {type(error).__name__}: {error}".splitlines()[0][:200]
    error.__traceback__ = None  # its frames hold the batch
    return PartGrowth(part, Unavailable(said), 0.0, None, "", "")
