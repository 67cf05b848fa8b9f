"""What does a watch add to a training step, and what does it cost to open and close one?"""

from __future__ import annotations

import gc
import math
import statistics
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


def profiler(_training: Training | None) -> AbstractContextManager[Any]:
    """Open torch's profiler for memory."""
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def mem_tracker(training: Training) -> AbstractContextManager[Any]:
    """Open torch's memory tracker; it takes one step of a model, so it is new each time."""
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(training.model, training.optimizer)
    return tracker


STACKS = "torch.profiler(profile_memory, with_stack)"
TOOLS: dict[str, Callable[[Training], AbstractContextManager[Any]]] = {
    "%%memwatch": memwatch,
    "%%memwatch --exact": memwatch_exact,
    STACKS: profiler_with_stacks,
    "torch.profiler(profile_memory)": profiler,
    "MemTracker": mem_tracker,
}
ONE_STEP_ONLY = {"MemTracker"}


def measure(model: str, tool: str, n_pairs: int, block_s: float) -> dict[str, Any]:
    """Time blocks of plain and of watched steps in turn, each on a model of its own.

    Returns:
        Seconds: CPU time of a step, plain and watched; CPU time of the exit after them, and of that
        of an empty watch; wall time of an empty watch. And how many steps a watch saw.
    """
    plain, watched = make(model), make(model)
    for _ in range(3):
        plain.step()
        watched.step()
    n_steps = max(2, math.ceil(block_s / _cpu_s(plain, 2)))
    figures: dict[str, Any] = {
        "plain": [],
        "watched": [],
        "exit": [],
        "empty_exit": [],
        "empty": [],
    }
    for number in range(n_pairs + 1):
        kept = figures if number else {name: [] for name in figures}  # the first warms up
        if number % 2:
            _plain_block(plain, n_steps, kept)
        _watched_block(watched, tool, n_steps, kept)
        if not number % 2:
            _plain_block(plain, n_steps, kept)
        if number % 4 == 1:
            _empty_watch(watched, tool, kept)
    n_seen = 1 if tool in ONE_STEP_ONLY else n_steps + N_WARM
    return {**figures, "n_seen": n_seen}


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
    with TOOLS[tool](training):
        if tool in ONE_STEP_ONLY:
            cost = _cpu_s(training, 1)
        else:
            for _ in range(N_WARM):
                training.step()
            cost = _cpu_s(training, n_steps)
        leaving = time.process_time()
    figures["exit"].append(time.process_time() - leaving)
    figures["watched"].append(cost)


def _empty_watch(training: Training, tool: str, figures: dict[str, Any]) -> None:
    gc.collect()
    watch = TOOLS[tool](training)
    entering = time.perf_counter()
    with watch:
        leaving = time.process_time()
    figures["empty_exit"].append(time.process_time() - leaving)
    figures["empty"].append(time.perf_counter() - entering)


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
    n_pairs, block_s = (3, 0.0) if quick else (20, 0.3)
    table = Table(
        "memory: a training step inside an open watch",
        (
            "model",
            "tool",
            "of the plain step",
            "and reading out",
            "of profiler+stack's",
            "plain, ms",
            "fixed, ms",
            "goal",
        ),
    )
    for model in models:
        found = {
            tool: in_process(measure, model=model, tool=tool, n_pairs=n_pairs, block_s=block_s)
            for tool in TOOLS
        }
        _add_rows(table, model, found, with_goals=not quick)
    table.notes += _notes(n_pairs, block_s, in_process(second_step, model=models[0]))
    return [table]


def _add_rows(
    table: Table, model: str, found: dict[str, dict[str, Any]], *, with_goals: bool
) -> None:
    whole = {tool: _with_reading_out(one) for tool, one in found.items()}
    in_step = {
        tool: ratios(list(zip(one["plain"], one["watched"], strict=True)))
        for tool, one in found.items()
    }
    stacks = (in_step[STACKS].median, whole[STACKS].median)
    for tool, one in found.items():
        plain = Spread.of(one["plain"])
        noisy = "" if plain.width < 0.1 else " (noisy)"
        table.add(
            model,
            tool,
            in_step[tool].show(),
            whole[tool].show(),
            f"{in_step[tool].median / stacks[0]:.2f}, {whole[tool].median / stacks[1]:.2f}",
            plain.show(1e3, digits=1) + noisy,
            Spread.of(one["empty"]).show(1e3, digits=0),
            _goal(
                model,
                tool,
                (in_step[tool].median, stacks[0]),
                (whole[tool].median, stacks[1]),
            )
            if with_goals
            else "too few steps",
        )


def _with_reading_out(one: dict[str, Any]) -> Spread:
    """Share what leaving a watch costs beyond leaving an empty one among the steps it saw."""
    fixed = statistics.median(one["empty_exit"])
    rows = zip(one["plain"], one["watched"], one["exit"], strict=True)
    return Spread.of(
        [(watched + (left - fixed) / one["n_seen"]) / plain for plain, watched, left in rows]
    )


def _goal(model: str, tool: str, in_step: tuple[float, float], whole: tuple[float, float]) -> str:
    """Hold a watch against the profiler with stacks, each given as (watch, profiler)."""
    if tool != "%%memwatch":
        return ""
    goals = [
        f"<= profiler+stack in the step: {_met(in_step[0] <= in_step[1])}",
        f"<= it with reading out: {_met(whole[0] <= whole[1])}",
    ]
    if model == "transformer":
        goals.append(f"about 1.5: {_met(max(in_step[0], whole[0]) < 1.6)}")
    return "; ".join(goals)


def _met(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def _notes(n_pairs: int, block_s: float, raised: str) -> list[str]:
    return [
        (
            f"Ratios: median [quartiles] of {n_pairs} pairs of blocks, plain and watched in turn, "
            "each on a model of its own, in a new process per row; CPU time, one torch thread. A "
            f"block is {block_s:g} s of plain steps after {N_WARM} that are not timed. Where the "
            "quartiles of the plain step lie more than 10 % apart, the row is marked noisy."
        ),
        (
            "And reading out: the profiler puts work off until it is left, the more the more steps "
            "it saw. What leaving costs beyond leaving an empty watch is shared among the steps. "
            "A table of the profiler's events would cost more. Both figures are held against the "
            "goal; of profiler+stack's: this row's two over that row's."
        ),
        (
            "Fixed: wall time of entering and leaving an empty watch: the two censuses and the "
            "report for %%memwatch."
        ),
        f"MemTracker is timed over one step, all that it takes. A second step raises {raised}.",
    ]
