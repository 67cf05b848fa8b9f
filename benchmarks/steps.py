"""What does a watch add to a training step, and what does it cost to open and close one?"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.fresh import in_process
from benchmarks.models import TRAININGS, Training, make
from benchmarks.tables import Spread, Table, ratios

N_WARM = 2


def memwatch(_training: Training) -> AbstractContextManager[Any]:
    """Open nbinspect's watch."""
    import nbinspect

    return nbinspect.memwatch()


def memwatch_exact(_training: Training) -> AbstractContextManager[Any]:
    """Open nbinspect's watch with the allocator's own events."""
    import nbinspect

    return nbinspect.memwatch(exact=True)


def profiler_with_stacks(_training: Training) -> AbstractContextManager[Any]:
    """Open torch's profiler for memory, with Python's stacks."""
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True)


def profiler(_training: Training) -> AbstractContextManager[Any]:
    """Open torch's profiler for memory."""
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def mem_tracker(training: Training) -> AbstractContextManager[Any]:
    """Open torch's memory tracker; it takes one step of a model, so it is new each time."""
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(training.model, training.optimizer)
    return tracker


TOOLS: dict[str, Callable[[Training], AbstractContextManager[Any]]] = {
    "%%memwatch": memwatch,
    "%%memwatch --exact": memwatch_exact,
    "torch.profiler(profile_memory, with_stack)": profiler_with_stacks,
    "torch.profiler(profile_memory)": profiler,
    "MemTracker": mem_tracker,
}
ONE_STEP_ONLY = {"MemTracker"}


def measure(model: str, tool: str, n_pairs: int, block_s: float) -> dict[str, Any]:
    """Time blocks of plain and of watched steps in turn, each on a model of its own.

    Returns:
        Seconds of CPU time a step, plain and watched, and of wall time to enter and to exit.
    """
    plain, watched = make(model), make(model)
    for _ in range(3):
        plain.step()
        watched.step()
    n_steps = max(2, math.ceil(block_s / _cpu_s(plain, 2)))
    figures: dict[str, Any] = {"plain": [], "watched": [], "enter": [], "exit": []}
    for number in range(n_pairs + 1):
        kept = figures if number else {name: [] for name in figures}  # the first warms up
        if number % 2:
            _plain_block(plain, n_steps, kept)
        _watched_block(watched, tool, n_steps, kept)
        if not number % 2:
            _plain_block(plain, n_steps, kept)
    return {**figures, "n_steps": n_steps}


def _cpu_s(training: Training, n_steps: int) -> float:
    start = time.process_time()
    for _ in range(n_steps):
        training.step()
    return (time.process_time() - start) / n_steps


def _plain_block(training: Training, n_steps: int, figures: dict[str, Any]) -> None:
    gc.collect()
    for _ in range(N_WARM):
        training.step()
    figures["plain"].append(_cpu_s(training, n_steps))


def _watched_block(training: Training, tool: str, n_steps: int, figures: dict[str, Any]) -> None:
    gc.collect()
    watch = TOOLS[tool](training)
    began = time.perf_counter()
    watch.__enter__()  # by hand, to time it apart
    figures["enter"].append(time.perf_counter() - began)
    if tool in ONE_STEP_ONLY:
        cost = _cpu_s(training, 1)
    else:
        for _ in range(N_WARM):
            training.step()
        cost = _cpu_s(training, n_steps)
    figures["watched"].append(cost)
    began = time.perf_counter()
    watch.__exit__(None, None, None)
    figures["exit"].append(time.perf_counter() - began)


def second_step(model: str) -> str:
    """Give what a second step under one MemTracker raises."""
    training = make(model)
    with mem_tracker(training):
        training.step()
        try:
            training.step()
        except Exception as error:
            return f"{type(error).__name__}: {str(error).partition('.')[0]}"
    return "nothing"


def tables(*, quick: bool) -> list[Table]:
    """Measure every tool on every model."""
    models = list(TRAININGS)[:1] if quick else list(TRAININGS)
    n_pairs, block_s = (3, 0.0) if quick else (20, 0.15)
    table = Table(
        "memory: a training step inside an open watch",
        (
            "model",
            "tool",
            "of the plain step",
            "plain, ms",
            "of profiler+stack",
            "enter+exit, ms",
            "goal",
        ),
    )
    for model in models:
        found = {
            tool: in_process(measure, model=model, tool=tool, n_pairs=n_pairs, block_s=block_s)
            for tool in TOOLS
        }
        _add_rows(table, model, found)
    raised = in_process(second_step, model=models[0])
    table.notes += _notes(n_pairs, raised)
    return [table]


def _add_rows(table: Table, model: str, found: dict[str, dict[str, Any]]) -> None:
    spreads = {
        tool: ratios(list(zip(one["plain"], one["watched"], strict=True)))
        for tool, one in found.items()
    }
    stacks = spreads["torch.profiler(profile_memory, with_stack)"].median
    for tool, one in found.items():
        ends = Spread.of([sum(both) for both in zip(one["enter"], one["exit"], strict=True)])
        plain = Spread.of(one["plain"])
        noisy = "" if plain.width < 0.1 else " (noisy)"
        table.add(
            model,
            tool,
            spreads[tool].show(),
            plain.show(1e3, digits=1) + noisy,
            f"{spreads[tool].median / stacks:.2f}",
            ends.show(1e3, digits=0),
            _goal(model, tool, spreads[tool].median, stacks),
        )


def _goal(model: str, tool: str, ratio: float, stacks: float) -> str:
    if tool != "%%memwatch":
        return ""
    goals = [f"<= profiler+stack: {'met' if ratio <= stacks else 'MISSED'}"]
    if model == "transformer":
        goals.append(f"about 1.5: {'met' if ratio < 1.6 else 'MISSED'}")
    return "; ".join(goals)


def _notes(n_pairs: int, raised: str) -> list[str]:
    return [
        (
            f"Ratio: median [quartiles] of {n_pairs} pairs of blocks, plain and watched in turn, each "
            "on a model of its own in a process of its own per row; CPU time, one torch thread. A "
            "block is at least 0.15 s of plain steps after two that are not timed. Where the quartiles "
            "of the plain step lie more than 10 % apart, the row is marked noisy."
        ),
        "of profiler+stack: this row's ratio over that of torch.profiler with stacks.",
        (
            "Enter and exit are wall time and outside of the ratio: the two censuses and the report "
            "for %%memwatch, stopping and reading the trace for the profiler (a table of it costs more)."
        ),
        f"MemTracker is timed over one step, all that it takes. A second step raises {raised}.",
    ]
