"""`%gpumem` and `%%memwatch` in a real kernel: right numbers, and nothing left of the watch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest
from kerneldriver import Kernel, start_with_toys

MODES = "__import__('torch').utils._python_dispatch._get_current_dispatch_mode_stack()"
TRAIN = """
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
losses = []
for _ in range(5):
    loss = model(torch.randn(32, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
outcome = losses, [p.sum().item() for p in model.parameters()], torch.rand(3).tolist()
del model, optimizer, loss, losses
"""


@pytest.fixture(scope="module")
def torch_kernel() -> Iterator[Kernel]:
    kernel = start_with_toys()
    kernel.ok("import torch, weakref, sys\ntorch.set_num_threads(1)")
    kernel.ok("%%memwatch\ntorch.ones(1);")  # torch imports more at its first dispatch mode
    yield kernel
    kernel.stop()


@pytest.fixture
def kernel(torch_kernel: Kernel) -> Iterator[Kernel]:
    before = torch_kernel.value("toys.traces()")
    yield torch_kernel
    assert torch_kernel.value(MODES) == "[]"
    assert torch_kernel.value("toys.traces()") == before
    torch_kernel.ok("get_ipython().displayhook.flush()")


def plain(kernel: Kernel, expression: str) -> Any:
    return ast.literal_eval(kernel.value(expression))


def test_gpumem_counts_a_model_its_adam_state_and_an_out_tensor(kernel: Kernel) -> None:
    kernel.ok(
        "model = torch.nn.Linear(1000, 1000)\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "model(torch.ones(1, 1000)).sum().backward()\n"
        "optimizer.step()"
    )
    out = kernel.ok("torch.ones(1000, 500)").count
    shown = kernel.ok("m = %gpumem -o kept")
    assert len(shown.data) == 1
    assert {"text/plain", "text/html"} <= set(shown.data[0])
    assert plain(kernel, "m is kept")
    n_weights = 4 * (1000 * 1000 + 1000)
    assert dict(plain(kernel, "m.device('cpu').by_kind")) == {
        "PARAMETER": n_weights,
        "GRADIENT": n_weights,
        "OPTIMIZER_STATE": 2 * n_weights + 2 * 4,  # and two float32 step counts
        "OUT_HISTORY": 4 * 1000 * 500,
    }
    largest = plain(kernel, "{h.owner: h.size_bytes for h in m.device('cpu').holdings}")
    assert largest["model.weight"] == 4_000_000
    assert largest["optimizer.state[model.weight]['exp_avg']"] == 4_000_000
    also = plain(
        kernel, "[(h.owner, *h.also) for h in m.device('cpu').holdings if 'OUT' in h.kind]"
    )
    assert f"[{out}]" in str(also)  # Out[n], under one of its names
    kernel.ok("del model, optimizer")


def test_gpumem_is_the_function_of_the_same_name(kernel: Kernel) -> None:
    kernel.ok("import nbinspect\nheld = torch.ones(100)\nm = %gpumem --top 3 ;")
    kernel.ok("f = nbinspect.gpumem(top=3)")
    assert plain(kernel, "m.device('cpu').holdings == f.device('cpu').holdings and m.n_top == 3")
    assert plain(kernel, "not m.diff(f)")
    kernel.ok("del held")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("%gpumem --device tpu:9", "%gpumem: no device 'tpu:9' here"),
        ("%gpumem --top -1", "%gpumem: --top takes a whole number from 1 up, not -1"),
        ("%gpumem --hz 100", "%gpumem: --hz takes a number from 0.2 to 20, not 100"),
        ("%gpumem --live -o m", "%gpumem: --live shows every device and keeps no record"),
        ("%%memwatch --nope\nran = 1", "%%memwatch: unknown option --nope"),
        ("%%memwatch --top x\nran = 1", "%%memwatch: --top takes a whole number from 1 up, not x"),
        ("%%gpumem --top 0\nran = 1", "%%gpumem: --top takes a whole number from 1 up, not 0"),
    ],
)
def test_usage_errors(kernel: Kernel, line: str, error: str) -> None:
    reply = kernel.run(line)
    assert reply.status == "error"
    assert reply.error.startswith(f"UsageError: {error}")
    assert len(reply.text("stderr").strip().splitlines()) == 1
    assert plain(kernel, "'ran' in globals()") is False


@pytest.mark.parametrize("head", ["%%memwatch -o r", "%%gpumem -o r", "%%time\n%%memwatch -o r"])
def test_memwatch_says_which_line_allocated_and_what_stayed(kernel: Kernel, head: str) -> None:
    reply = kernel.ok(
        f"{head}\nkept = torch.ones(1000, 1000)\n\npassing = kept + 1\ndel passing\n'value'"
    )
    assert "'value'" in reply.texts("result")
    assert len(reply.texts("display")) == 1
    first = head.count("\n") + 2
    lines = plain(
        kernel, "[(l.where.cell, l.where.lineno, l.kept_bytes) for l in r.lines if l.where]"
    )
    assert (reply.count, first, 4_000_000) in lines
    assert (reply.count, first + 2, 0) in lines
    texts = plain(kernel, "[l.where.text for l in r.lines if l.where]")
    assert "kept = torch.ones(1000, 1000)" in texts
    assert plain(kernel, "(r.added_peak_bytes, r.error)") == (8_000_000, "")
    assert plain(kernel, "[(h.owner, h.size_bytes) for h in r.kept]") == [("kept", 4_000_000)]
    kernel.ok("del kept")


@pytest.mark.parametrize("head", ["%%memwatch -o r", "%%time\n%%memwatch -o r"])
def test_memwatch_reports_a_cell_that_fails(kernel: Kernel, head: str) -> None:
    reply = kernel.run(f"{head}\nt = torch.ones(1000)\nt @ torch.ones(3)")
    assert reply.status == "error"
    assert reply.error.startswith("RuntimeError: ")
    assert f"Cell In[{reply.count}], line {head.count(chr(10)) + 3}" in reply.text("error")
    assert "nbinspect" not in reply.text("error")
    assert len(reply.texts("display")) == 1
    assert plain(kernel, "r.error") == "RuntimeError"
    kernel.ok("del t")


@pytest.mark.parametrize(
    "head", ["%%memwatch", "%%memwatch --exact", "%%time\n%%memwatch", "%%memwatch\n%%memwatch"]
)
def test_memwatch_changes_no_bit(kernel: Kernel, head: str) -> None:
    kernel.ok(TRAIN + "plainly = outcome")
    kernel.ok(f"{head}\n{TRAIN}")
    assert plain(kernel, "outcome == plainly")


@pytest.mark.parametrize(
    "head", ["%%memwatch", "%%memwatch --exact", "%%time\n%%memwatch", "%%memwatch\n%%time"]
)
def test_memwatch_keeps_no_tensor_alive(kernel: Kernel, head: str) -> None:
    kernel.ok(
        f"{head}\nt = torch.ones(1000, requires_grad=True)\nref = weakref.ref(t)\n(t * 2).sum()"
    )
    kernel.ok("get_ipython().displayhook.flush(); del t")
    assert kernel.value("ref()") == "None"
    kernel.run(f"{head}\nt = torch.ones(1000)\nref = weakref.ref(t)\ndel t\n1/0")
    assert kernel.value("ref()") == "None"
    kernel.ok("%gpumem ;")
    assert (
        kernel.value("'Tensor' in str(type(get_ipython().last_execution_result.result))") == "False"
    )


def test_memwatch_of_an_await(kernel: Kernel) -> None:
    code = "import asyncio\nt = torch.ones(1000)\nawait asyncio.sleep(0)\nu = torch.ones(1000)"
    reply = kernel.ok(f"%%memwatch -o r\n{code}")
    lines = plain(kernel, "sorted((l.where.cell, l.where.lineno) for l in r.lines if l.where)")
    assert lines == [(reply.count, 3), (reply.count, 5)]
    kernel.ok("del t, u")


def test_interrupt_during_a_watched_training(kernel: Kernel) -> None:
    code = "print('go', flush=True)\nwhile True:\n    t = torch.ones(100)"
    reply = kernel.interrupted(f"%%memwatch -o r\n{code}")
    assert (reply.status, reply.error) == ("error", "KeyboardInterrupt: ")
    assert plain(kernel, "r.error") == "KeyboardInterrupt"
    assert kernel.value(MODES) == "[]"
    kernel.ok("globals().pop('t', None);")


def test_syntax_error_leaves_no_watch(kernel: Kernel) -> None:
    reply = kernel.run("%%memwatch\nx = = 1")
    assert (reply.status, reply.texts("display")) == ("error", [])


def test_live_bars_open_and_close(kernel: Kernel) -> None:
    assert "live" in kernel.ok("%gpumem --live").text("display").lower()
    assert kernel.ok("%gpumem --live --stop").text("stdout") == "1 live view closed\n"
    assert kernel.ok("%gpumem --stop").text("stdout") == "0 live views closed\n"
    threads = plain(kernel, "toys.traces()['threads']")
    kernel.ok("%gpumem --live --hz 10")
    kernel.ok("%unload_ext nbinspect")
    assert plain(kernel, "toys.traces()['threads']") == threads
    kernel.ok("%load_ext nbinspect")
