"""How much of a training cell do live bars take?"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.fresh import Notebook
from benchmarks.models import make
from benchmarks.tables import Spread, Table, ratios, verdict

LIMIT = 0.01
RATES = (5, 20)
START = "import torch\n%load_ext nbinspect\nfrom benchmarks.live import train\n"


def gauges_s(number: int) -> list[float]:
    """Time the readings that live bars are made of, in seconds of CPU."""
    from nbinspect.memory.gauges import gauges

    gauges()
    found = []
    for _ in range(number):
        began = time.process_time()
        gauges()
        found.append(time.process_time() - began)
        time.sleep(0.01)  # a cache that is cold again, as between two readings
    return found


def train(seconds: float) -> dict[str, Any]:
    """Train for about that long; give what a step and the sampling thread cost, and its readings."""
    from nbinspect.widgets.sampler import SAMPLER

    training = make("transformer")
    training.step()
    sampler, n_samples = _sampler_s(), SAMPLER.n_samples
    began, cpu, main, n_steps = time.perf_counter(), time.process_time(), time.thread_time(), 0
    while time.perf_counter() - began < seconds:
        training.step()
        n_steps += 1
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    main = time.thread_time() - main
    return {
        "step_s": cpu / n_steps,
        "others": (cpu - main) / wall,
        "sampler": (_sampler_s() - sampler) / wall,
        "hz": (SAMPLER.n_samples - n_samples) / wall,
    }


def _sampler_s() -> float:
    """Give the CPU seconds of the live bars' thread, by the kernel's own count; 0 without one."""
    for thread in threading.enumerate():
        if thread.name == "nbinspect-live":
            counted = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
            return int(counted.split()[0]) / 1e9
    return 0.0


def tables(*, quick: bool) -> list[Table]:
    """Train with and without bars, in turn, in one notebook for each rate."""
    table = Table(
        "live: what open bars take of a training cell",
        (
            "rate, Hz",
            "reached, Hz",
            "gauges(), ms",
            "gauges() at this rate",
            "bars' thread, of the cell",
            "all threads but the main one, more than without",
            "a step with bars, of one without",
            "goal",
        ),
    )
    n_pairs, seconds = (2, 0.3) if quick else (20, 1.0)
    for hz in RATES[:1] if quick else RATES:
        with Notebook() as notebook:
            notebook.run(START)
            reading = Spread.of(notebook.call("__import__('benchmarks.live').live.gauges_s(50)"))
            pairs = [_pair(notebook, hz, seconds, number % 2 == 0) for number in range(n_pairs)]
        _add_row(table, hz, reading, pairs)
    table.notes += [
        (
            f"A transformer trains for {seconds:g} s a cell, one torch thread, {n_pairs} pairs of cells "
            "with and without bars in alternating order; no page is connected, all messages are sent."
        ),
        ("Reached: a thread whose readings cost more than 0.7 % of a core takes fewer of them."),
        (
            "The bars' thread: its own CPU time by the kernel's count (schedstat), over the cell's wall "
            "time. All threads but the main one: the process's CPU time less the main thread's, less "
            "the same of the cell without bars; the kernel's message thread is in it."
        ),
        (
            "The ratio of steps (CPU of the whole process) is the cross-check; its noise is a few per "
            "cent, too coarse for 1 %, so the goal is held against the larger of those two shares."
        ),
    ]
    return [table]


def _pair(
    notebook: Notebook, hz: int, seconds: float, without_first: bool
) -> tuple[dict[str, float], dict[str, float]]:
    def with_bars() -> dict[str, float]:
        notebook.run(f"%gpumem --live --hz {hz}")
        found: dict[str, float] = notebook.call(f"train({seconds})")
        notebook.run("%gpumem --live --stop")
        return found

    if without_first:
        return notebook.call(f"train({seconds})"), with_bars()
    open_bars = with_bars()
    return notebook.call(f"train({seconds})"), open_bars


def _add_row(
    table: Table, hz: int, reading: Spread, pairs: list[tuple[dict[str, float], dict[str, float]]]
) -> None:
    thread = Spread.of([bars["sampler"] for _, bars in pairs])
    others = Spread.of([bars["others"] - plain["others"] for plain, bars in pairs])
    steps = ratios([(plain["step_s"], bars["step_s"]) for plain, bars in pairs])
    worst = max(thread.median, others.median)
    table.add(
        f"{hz}",
        Spread.of([bars["hz"] for _, bars in pairs]).show(),
        reading.show(1e3),
        f"{reading.median * hz:.2%}",
        thread.show(100, "%"),
        others.show(100, "%"),
        steps.show(1, "", 3),
        verdict(worst * 100, LIMIT * 100, " %"),
    )
