"""What takes a process of its own: large graphs, also when they are freed, and compiled models."""

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


COMPILED = """
import json, torch, nbinspect
from torch import nn
model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), torch.randn(8, 4)
compiled = torch.compile(model, backend="aot_eager")
loss = compiled(x).mean()
report = nbinspect.autograd(loss)
with nbinspect.graphwatch() as w:
    loss = compiled(x).mean()
    loss.backward()
faults = [f.sentence for r in (report, w.report) for f in r.findings if f.is_fault]
names = [n.name for n in report.nodes]
print(json.dumps([faults, report.n_parameters, names, all(p.grad is not None for p in model.parameters())]))
"""


def test_a_compiled_model_is_one_node_and_reaches_its_parameters():
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    faults, n_parameters, names, trained = json.loads(done.stdout)
    assert faults == []
    assert n_parameters == 4
    assert any(name.startswith("CompiledFunction") for name in names)
    assert trained
