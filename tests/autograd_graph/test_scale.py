"""Large graphs: an answer in time, no crash then or when they are freed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ASK = """
import json, time, torch, nbinspect
torch.set_num_threads(1)
{plant}
start = time.perf_counter()
report = nbinspect.autograd(y, name="y")
text, html = report.text(), report.html()
took = time.perf_counter() - start
del y
{free}
print(json.dumps([len(report.nodes), report.complete, report.notes, took]))
"""
CHAIN = """
y = torch.ones(1, requires_grad=True) * 1
for _ in range(100_000):
    y = y * 1
"""
WIDE = """
x = torch.ones(1, requires_grad=True)
y = torch.stack([x * i for i in range(50_000)]).sum()
"""
TRANSFORMER = """
from torch import nn
layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
model = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
y = model(torch.randn(2, 16, 64)).mean()
nbinspect.autograd(y).html()
"""


@pytest.mark.parametrize(
    ("plant", "complete"),
    [(CHAIN, False), (WIDE, False), (TRANSFORMER, True)],
    ids=["100,000 in a row", "50,000 side by side", "24 layers"],
)
def test_it_neither_crashes_nor_hangs(plant, complete):
    code = ASK.format(plant=plant, free="")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    n_nodes, whole, notes, took = json.loads(done.stdout)
    sys.stdout.write(f"{n_nodes} nodes: {took:.2f} s\n")
    assert whole is complete
    assert n_nodes > 100
    assert any("nearest" in note for note in notes) is not complete
