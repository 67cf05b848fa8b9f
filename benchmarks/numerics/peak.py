"""How much memory does watching for NaN take at the peak of a step?"""

from __future__ import annotations

import importlib.util
import tracemalloc

from benchmarks.accuracy import peak_of
from benchmarks.fresh import in_process
from benchmarks.numerics.cost import EXACT, LIGHT, WATCHES
from benchmarks.numerics.models import TRAININGS, make
from benchmarks.tables import Table, verdict

LIMIT = 5.0  # percent
N_WARM = 2


def tensor_bytes(model: str, watch: str) -> int:
    """Give what tensors take at the peak of the third step beyond what there was before it."""
    return peak_of(lambda: make(model), N_WARM, True, WATCHES[watch])


def python_bytes(model: str, watch: str) -> int:
    """Give what Python's objects take at the peak of the third step beyond what there was."""
    training = make(model)
    with WATCHES[watch]():
        for _ in range(N_WARM):
            training.step()
        tracemalloc.start()
        training.step()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


def tables(*, quick: bool) -> list[Table]:
    """Compare the peaks of a plain step and of one under a watch, each in a process of its own."""
    table = Table(
        "numerics: what a watch for NaN adds to the peak of a step",
        (
            "model",
            "watch",
            "plain, bytes",
            "added tensors",
            "added Python objects",
            "share",
            "goal",
        ),
    )
    has_gpt2 = importlib.util.find_spec("transformers") is not None
    models = [name for name in TRAININGS if name != "GPT-2" or has_gpt2]
    for model in models[:1] if quick else models:
        plain = _peaks(model, "plain")
        for watch in (EXACT, LIGHT):
            tensors, objects = (
                with_it - without
                for with_it, without in zip(_peaks(model, watch), plain, strict=True)
            )
            share = 100 * (tensors + objects) / plain[0]
            goal = verdict(share, LIMIT, " %") if watch == EXACT else ""
            table.add(
                model,
                watch,
                f"{plain[0]:,}",
                f"{tensors:,}",
                f"{objects:,}",
                f"{share:.2f} %",
                goal,
            )
    table.notes += [
        (
            "The third step, its peak above what there was before it: tensors by the profiler's "
            "allocator events since before the model was made, Python's objects by tracemalloc in "
            "another run. Share: both, of the plain step's tensors. The watch is open since before "
            "the first step."
        ),
    ]
    return [table]


def _peaks(model: str, watch: str) -> tuple[int, int]:
    return (
        in_process(tensor_bytes, model=model, watch=watch),
        in_process(python_bytes, model=model, watch=watch),
    )
