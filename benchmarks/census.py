"""How long does the census take, in a real notebook and on hard heaps, against other tools?"""

from __future__ import annotations

import gc
import time
from typing import Any

from benchmarks.fresh import Notebook
from benchmarks.rivals import TOOLS, has_memlab
from benchmarks.tables import Spread, Table, ratios, verdict

START = """
import torch
%load_ext nbinspect
from torch import nn
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(32, 64)).sum().backward()
optimizer.step()
"""
GRAPH = """
weight = torch.randn(16, 16, requires_grad=True)
out = torch.randn(16, 16)
for _ in range(5000):
    out = torch.tanh(out * weight)
"""
CONTAINERS = "containers = [{'item': [number]} for number in range(500_000)]\n"
HEAPS = {
    "fresh notebook": ("", 0.5),
    "graph of 10,000 operations": (GRAPH, 0.5),
    "a million containers": (CONTAINERS, 2.0),
}
WATCH = """
import time, nbinspect
_began = time.perf_counter()
with nbinspect.memwatch():
    pass
print(time.perf_counter() - _began)
"""


def timed(n_rounds: int, names: list[str]) -> dict[str, Any]:
    """Time tools in turn, in seconds of wall and of CPU; the first call of each comes first."""
    wall_s: dict[str, list[float]] = {}
    cpu_s: dict[str, list[float]] = {}
    found = {name: TOOLS[name] for name in names}
    for number in range(n_rounds + 1):
        order = list(found) if number % 2 == 0 else list(reversed(found))
        for name in order:
            began, began_cpu = time.perf_counter(), time.process_time()
            answer = found[name]()
            cpu_s.setdefault(name, []).append(time.process_time() - began_cpu)
            wall_s.setdefault(name, []).append(time.perf_counter() - began)
            del answer
    return {"n_objects": len(gc.get_objects()), "wall_s": wall_s, "cpu_s": cpu_s}


def tables(*, quick: bool) -> list[Table]:
    """Time the census in a fresh notebook process for each kind of heap."""
    table = Table(
        "census: gpumem() in a notebook process",
        (
            "heap",
            "tracked objects",
            "tool",
            "first call, s",
            "then, wall s",
            "CPU s",
            "CPU of the gc loop's",
            "goal",
        ),
    )
    n_rounds = 2 if quick else 20
    for heap in list(HEAPS)[:1] if quick else HEAPS:
        code, limit_s = HEAPS[heap]
        with Notebook() as notebook:
            notebook.run(START + code)
            notebook.run("from benchmarks.census import timed")
            found = notebook.call(f"timed({n_rounds}, ['gpumem()', 'gc loop'])")
            watch_s = _empty_watches(notebook, n_rounds)
            _add_rows(table, heap, limit_s, found, ["gpumem()", "gc loop"])
            table.add(heap, "", "empty %%memwatch", "", Spread.of(watch_s).show(), "", "", "")
            if has_memlab():
                found = notebook.call(f"timed({n_rounds}, ['MemReporter', 'gc loop'])")
                _add_rows(table, heap, limit_s, found, ["MemReporter"])
    table.notes += [
        (
            "Tools in turn, in alternating order; median [quartiles] of "
            f"{n_rounds} rounds, a new ipykernel for each heap. The first call also imports."
        ),
        (
            "CPU of the gc loop's: median [quartiles] of this tool's CPU time over the loop's of the "
            "same round."
        ),
        "An empty %%memwatch is what opening and closing one costs: two censuses and the report.",
        (
            "The goal is for wall time, which counts what other programs take of the machine; where it "
            "is far above CPU time, the machine was busy."
        ),
    ]
    return [table]


def _empty_watches(notebook: Notebook, number: int) -> list[float]:
    return [float(notebook.run(WATCH)) for _ in range(number)]


def _add_rows(
    table: Table, heap: str, limit_s: float, found: dict[str, Any], names: list[str]
) -> None:
    loop = found["cpu_s"]["gc loop"][1:]
    for tool in names:
        first, *then = found["wall_s"][tool]
        wall, cpu = Spread.of(then), found["cpu_s"][tool][1:]
        table.add(
            heap,
            f"{found['n_objects']:,}",
            tool,
            f"{first:.2f}",
            wall.show(),
            Spread.of(cpu).show(),
            ratios(list(zip(loop, cpu, strict=True))).show(),
            verdict(wall.median, limit_s, " s") if tool == "gpumem()" else "",
        )
