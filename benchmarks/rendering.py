"""How long does it take to show an answer?"""

from __future__ import annotations

import time

from benchmarks.fresh import Notebook
from benchmarks.tables import Spread, Table

FORMATS = ("text", "html", "svg", "png")
START = """
import torch
%load_ext nbinspect
from torch import nn
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(30)])
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(32, 64)).sum().backward()
optimizer.step()
from benchmarks.rendering import timed
"""


def timed(n_times: int) -> dict[str, list[float]]:
    """Render one snapshot in every format; the first time of each comes first."""
    import nbinspect

    record = nbinspect.gpumem()
    found: dict[str, list[float]] = {}
    for _ in range(n_times + 1):
        for name in FORMATS:
            began = time.perf_counter()
            getattr(record, name)()
            found.setdefault(name, []).append(time.perf_counter() - began)
    return found


def tables(*, quick: bool) -> list[Table]:
    """Render in a fresh notebook process."""
    n_times = 2 if quick else 20
    with Notebook() as notebook:
        notebook.run(START)
        found = notebook.call(f"timed({n_times})")
    table = Table("render: showing what gpumem() found", ("as", "first, ms", "then, ms"))
    for name, (first, *then) in found.items():
        table.add(f".{name}()", f"{first * 1e3:.1f}", Spread.of(then).show(1e3, digits=1))
    table.notes.append(
        f"Wall time; median [quartiles] of {n_times} times, in turn, in a fresh ipykernel. The first "
        "one that draws, here .html(), imports matplotlib for all."
    )
    return [table]
