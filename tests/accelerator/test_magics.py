"""Every magic in a real kernel that has a second device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kerneldriver import Kernel

SET_UP = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import card; card = card.start()
import torch
from torch import nn
import torch.nn.functional as F
%load_ext nbinspect
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to("card")
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(32, 64, device="card")
y = torch.randint(0, 10, (32,), device="card")

def step():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    one = Kernel()
    one.ok(SET_UP)
    yield one
    one.stop()


def shown(kernel: Kernel, cell: str) -> str:
    reply = kernel.ok(cell)
    return reply.text("display") + reply.text("result")


def test_gpumem_names_the_holders_of_each_device(kernel):
    kernel.ok("_ = step(); there = torch.ones(1 << 20, device='card:1')")
    text = shown(kernel, "m = %gpumem")
    assert "card:0: " in text
    assert "model.0.weight" in text
    assert kernel.value("m.device('card:1').allocated_bytes") == str(4 << 20)
    kernel.ok("del there, m")


def test_gpumem_of_one_device_and_of_none(kernel):
    assert "card:1" not in shown(kernel, "%gpumem --device card:0")
    reply = kernel.run("%gpumem --device card:9")
    assert reply.status == "error"
    assert "no device 'card:9' here; this process has card:0, card:1, cpu" in reply.error
    assert "card:1" in kernel.complete("%gpumem --device ")


def test_memwatch_gives_the_line_of_the_cell_in_the_backward_pass_too(kernel):
    text = shown(
        kernel, "%%memwatch\nhidden = model(x)\nhidden.sum().backward()\nkeep = hidden * 1"
    )
    assert "Peak" in text
    assert "on card:0" in text
    assert "hidden.sum().backward()" in text
    assert "no line of the user's own" not in text


def test_live_bars_show_the_devices(kernel):
    kernel.ok("%gpumem --live --hz 20")
    try:
        kernel.ok("from nbinspect.memory.gauges import gauges; bars = gauges()")
        assert "card:0" in kernel.value("[one.label for one in bars]")
    finally:
        kernel.ok("%gpumem --live --stop")


def test_nanwatch_stops_before_the_weights_are_spoilt(kernel):
    kernel.ok("scale = torch.zeros(64, device='card')")
    cell = (
        "optimizer.zero_grad()\nF.cross_entropy(model(x / scale), y).backward()\noptimizer.step()"
    )
    for options in ("", " --light", " --sync"):
        reply = kernel.run(f"%%nanwatch{options}\n{cell}")
        assert reply.status == "error"
        text = (reply.text("display") + reply.text("result")).replace("\n", " ")
        assert "`div` made" in text
        assert "line 3 (`F.cross_entropy(model(x / scale), y).backward()`)" in text
        assert kernel.value("all(bool(p.isfinite().all()) for p in model.parameters())") == "True"
    kernel.ok("get_ipython().run_line_magic('traceback_memory', '--drop')")


def test_gradwatch_and_gradtable(kernel):
    kernel.ok("%%gradwatch -o g\nfor _ in range(5):\n    step()")
    text = kernel.ok("print(g)").text("stdout")
    assert "healthy in all 5 steps" in text
    assert "model.0" in text
    assert "model.0.bias" in shown(kernel, "%gradtable")


def test_refchain_and_autograd(kernel):
    kernel.ok("hidden = model(x); store = {'h': hidden}")
    text = shown(kernel, "%refchain hidden")
    assert "store['h']" in text
    assert "explained" in text
    assert "model.0" in shown(kernel, "%autograd hidden.sum()")
    kernel.ok("del hidden, store")


def test_leakwatch_tells_the_device(kernel):
    kernel.ok("kept = []")
    text = shown(kernel, "%%leakwatch 4\nkept.append(torch.ones(1 << 18, device='card:1'))")
    assert "+1.00 MiB each run" in text
    assert "kept" in text
    kernel.ok("kept.clear()")


def test_headroom_tells_of_the_devices_own_autocast(kernel):
    assert "on card" in shown(kernel, "%headroom step()")


def test_a_cell_that_runs_out_of_memory(kernel):
    kernel.ok("acts = [torch.ones(1 << 20, device='card') for _ in range(4)]")
    reply = kernel.run("with card.room(1 << 20):\n    torch.empty(1 << 26, device='card')")
    assert reply.status == "error"
    text = shown(kernel, "%traceback_memory")
    assert "Out of memory on card:0: 256 MiB were asked for" in text
    assert "acts.clear()" in text
    kernel.ok("%traceback_memory --drop")
    kernel.ok("acts.clear()")


def test_every_picture_is_drawn(kernel):
    reply = kernel.ok("%gpumem")
    bundles = [one for one in reply.data if "text/html" in one]
    assert bundles
    assert "card:0" in bundles[-1]["text/html"]
