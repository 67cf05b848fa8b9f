"""What does watching for NaN add to a training step, against torch's own way of doing it?"""

from __future__ import annotations

import gc
import importlib.util
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from benchmarks.fresh import in_process
from benchmarks.models import Training
from benchmarks.numerics.models import TRAININGS, make
from benchmarks.tables import Spread, Table, ratios

N_WARM = 2
EXACT, LIGHT, ANOMALY = "%%nanwatch", "%%nanwatch --light", "detect_anomaly"
# Goals by (tool, model): a step may take so many times the plain one.
GOALS = {
    (EXACT, "GPT-2"): 1.35,
    (LIGHT, "GPT-2"): 1.05,
    (LIGHT, "conv net"): 1.05,
    (LIGHT, "MLP"): 1.10,
}


def exact() -> AbstractContextManager[Any]:
    """Open nbinspect's watch."""
    import nbinspect

    return nbinspect.nanwatch()


def light() -> AbstractContextManager[Any]:
    """Open nbinspect's light watch."""
    import nbinspect

    return nbinspect.nanwatch(light=True)


def anomaly() -> AbstractContextManager[Any]:
    """Open torch's anomaly mode."""
    return torch.autograd.set_detect_anomaly(True)


WATCHES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    EXACT: exact,
    LIGHT: light,
    ANOMALY: anomaly,
}


def measure(model: str, n_rounds: int, block_s: float) -> dict[str, Any]:
    """Time blocks of steps plain and under each watch, in turn, on one model.

    Returns:
        CPU seconds of a step by watch, one for each round, and the steps in a block.
    """
    import warnings

    warnings.simplefilter("ignore")  # detect_anomaly warns that it is on
    training = make(model)
    _cpu_s(training, 3)
    n_steps = max(2, math.ceil(block_s / _cpu_s(training, 2)))
    found: dict[str, list[float]] = {name: [] for name in WATCHES}
    for number in range(n_rounds + 1):
        for name in _in_turn(number):
            gc.collect()
            with WATCHES[name]():
                _cpu_s(training, N_WARM)
                cost = _cpu_s(training, n_steps)
            if number:  # the first round warms up
                found[name].append(cost)
    return {"cpu_s": found, "n_steps": n_steps}


def _in_turn(number: int) -> list[str]:
    """Start with another one each round, and go backwards every other round."""
    names = list(WATCHES)
    turned = names[number % len(names) :] + names[: number % len(names)]
    return turned[:: 1 if number % 2 else -1]


def _cpu_s(training: Training, n_steps: int) -> float:
    start = time.process_time()
    for _ in range(n_steps):
        training.step()
    return (time.process_time() - start) / n_steps


def tables(*, quick: bool) -> list[Table]:
    """Measure every watch on every model, each model in a process of its own."""
    table = Table(
        "numerics: a training step under a watch for NaN",
        ("model", "watch", "of the plain step", "of detect_anomaly's", "plain, ms", "goal"),
    )
    n_rounds, block_s = (2, 0.0) if quick else (24, 0.2)
    has_gpt2 = importlib.util.find_spec("transformers") is not None
    models = [name for name in TRAININGS if name != "GPT-2" or has_gpt2]
    for model in models[:1] if quick else models:
        found = in_process(measure, model=model, n_rounds=n_rounds, block_s=block_s)
        _add_rows(table, model, found["cpu_s"], with_goals=not quick)
    table.notes += [
        (
            f"Median [quartiles] of {n_rounds} rounds. In a round the plain step and the three "
            "watches run in turn, in an order that changes, on one model, each for "
            f"{block_s:g} s of steps after {N_WARM} that are not timed; a ratio is of one round. CPU "
            "time, one torch thread. Opening and closing a watch is not in it."
        ),
        "Where the quartiles of the plain step lie more than 10 % apart, the row is marked noisy.",
    ]
    return [table]


def _add_rows(table: Table, model: str, found: dict[str, list[float]], *, with_goals: bool) -> None:
    plain = Spread.of(found["plain"])
    noisy = "" if plain.width < 0.1 else " (noisy)"
    for watch in (EXACT, LIGHT, ANOMALY):
        of_plain = _ratio(found, "plain", watch)
        of_anomaly = _ratio(found, ANOMALY, watch)
        table.add(
            model,
            watch,
            of_plain.show(digits=3),
            of_anomaly.show(digits=3) if watch != ANOMALY else "",
            plain.show(1e3, digits=2) + noisy,
            _goals(model, watch, of_plain, of_anomaly) if with_goals else "too few rounds",
        )


def _ratio(found: dict[str, list[float]], below: str, above: str) -> Spread:
    return ratios(list(zip(found[below], found[above], strict=True)))


def _goals(model: str, watch: str, of_plain: Spread, of_anomaly: Spread) -> str:
    goals = []
    if watch == EXACT:
        goals.append(f"below detect_anomaly: {_met(of_anomaly.median < 1)}")
    if (watch, model) in GOALS:
        limit = GOALS[watch, model]
        goals.append(f"<= {limit:.2f}: {_met(of_plain.median <= limit)}")
    return "; ".join(goals)


def _met(is_met: bool) -> str:
    return "met" if is_met else "MISSED"
