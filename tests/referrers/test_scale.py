"""Large heaps and long graphs: an answer, no crash then or later, and what was not walked is said."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

ASK = """
import json, time, torch
from nbinspect import refchain
torch.set_num_threads(1)
{plant}
start = time.perf_counter()
report = refchain({target}, name={target!r}, all={every}, budget_s=60)
took = time.perf_counter() - start
{free}
print(json.dumps([str(report.chains[0]) if report.chains else "", report.notes, report.complete,
                  report.n_explained == report.n_references, took]))
"""
WIDE = """
heap = [[[i] for i in range(1000)] for _ in range(1000)]
cache = {"k": torch.ones(10)}
holders = [[cache] for _ in range(200)]
del cache
"""
NARROW = """
heap = [[[i] for i in range(1000)] for _ in range(1000)]
chain = [torch.ones(10)]
for _ in range(8):
    chain = [chain]
"""
NODES = """
x = torch.ones(1, requires_grad=True) * 1
kept, y = [x], x
for _ in range(100_000):
    y = y * 1
kept.clear()
del x
"""
TOTAL = """
w = torch.ones(1, requires_grad=True)
total = 0
for _ in range(1_000_000):
    total = total + w
"""


def ask(plant: str, target: str, free: str, *, every: bool = False) -> Any:
    code = ASK.format(plant=plant, target=target, free=free, every=every)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    sys.stdout.write(f"{found[-1]:.2f} s\n")
    return found


@pytest.mark.parametrize("every", [False, True])
def test_a_million_containers_wide(every: bool) -> None:
    name, notes, complete, explained, _ = ask(WIDE, "holders[0][0]['k']", "del heap", every=every)
    assert name.startswith("holders[")
    assert name.endswith("]['k']")
    assert (notes, complete, explained) == ([], True, True)


def test_a_million_containers_narrow() -> None:
    name, notes, complete, _, _ = ask(NARROW, "chain[0][0][0][0][0][0][0][0][0]", "del heap")
    assert name == "chain" + "[0]" * 9
    assert (notes, complete) == ([], True)


@pytest.mark.parametrize(
    ("plant", "target", "root", "free"),
    [
        (NODES, "y", "y", "del y"),
        (TOTAL, "total", "total", "del total"),
        (TOTAL, "w", "total", "del total, w"),
    ],
    ids=["100,000 nodes", "1,000,000 sums", "the leaf of 1,000,000 sums"],
)
def test_a_long_graph(plant: str, target: str, root: str, free: str) -> None:
    name, notes, complete, _, _ = ask(plant, target, free)
    assert name.startswith(root)
    assert any("larger than can be walked" in note for note in notes)
    assert not complete
