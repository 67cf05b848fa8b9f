"""A failed cell in a real kernel: the hint, what the error keeps, `--drop`, and memory is back."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from kerneldriver import Kernel, start_with_toys

PREPARE = """
import gc, os, psutil, sys, weakref, torch, nbinspect
gc.collect()
gc.disable()  # what comes back comes back through --drop alone
torch.set_num_threads(1)
N = 80 << 18  # float32: 80 MiB

def plant(n=N):
    global probe
    activations = torch.ones(n)
    probe = weakref.ref(activations)
    return activations

def fails():
    x = plant()
    raise RuntimeError("boom")

def chained():
    try:
        fails()
    except RuntimeError as error:
        raise ValueError("while cleaning up") from error

def waits():
    x = plant()
    print("go", flush=True)
    while True:
        x[0] += 1

class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("in backward")

def backward():
    x = plant().requires_grad_()
    Bad.apply(x * 1).sum().backward()

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        if i == 5: raise IndexError("row 5 is broken")
        return torch.ones(4)

def worker():
    x, kept = plant(), 0
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
    for batch in loader:
        kept = kept + batch.sum()

def rss():
    return psutil.Process().memory_info().rss
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Kernel]:
    kernel = start_with_toys()
    yield kernel
    kernel.stop()


@pytest.fixture
def kernel(shared: Kernel) -> Iterator[Kernel]:
    before = shared.value("toys.traces()")
    shared.ok(PREPARE)
    yield shared
    shared.ok("%traceback_memory --drop ;\ngc.enable()")
    assert shared.value("toys.traces()") == before


def number(kernel: Kernel, expression: str) -> int:
    return int(kernel.value(expression))


@pytest.mark.parametrize(
    ("call", "error", "frame"),
    [
        ("fails()", "RuntimeError: boom", "fails"),
        ("chained()", "ValueError: while cleaning up", "fails"),
        ("waits()", "KeyboardInterrupt", "waits"),
        ("backward()", "RuntimeError: in backward", "backward"),
        ("worker()", "IndexError: Caught IndexError in DataLoader worker process", "worker"),
    ],
)
def test_fail_hint_drop_and_memory_is_back(
    kernel: Kernel, call: str, error: str, frame: str
) -> None:
    before = number(kernel, "rss()")
    reply = kernel.interrupted(call) if call == "waits()" else kernel.run(call)
    assert reply.status == "error"
    (hint,) = reply.texts("display")
    assert f"in {frame}(), In[" in hint
    assert "--drop" in hint
    held = number(kernel, "rss()")
    assert held - before > 60 << 20
    kernel.ok("m = %traceback_memory")
    assert kernel.value("m.error").strip("'\"").startswith(error)
    assert number(kernel, "m.only_here_bytes") >= 80 << 20
    names = ast.literal_eval(
        kernel.value("[(f.function, f.where.cell, f.names) for f in m.frames if f.only_here_bytes]")
    )
    assert frame in [function for function, _, _ in names]
    assert kernel.value("probe() is None") == "False"
    shown = kernel.ok("m = %traceback_memory --drop").text("display")
    assert shown.startswith("Let go: ")
    assert kernel.value("(m.dropped, probe() is None)") == "(True, True)"
    assert held - number(kernel, "rss()") > 60 << 20


def test_the_hint_can_be_switched_off_and_moved(kernel: Kernel) -> None:
    said = kernel.ok("%traceback_memory --hint off").text("stdout")
    assert said == "no hints after failed cells\n"
    assert kernel.run("fails()").texts("display") == []
    said = kernel.ok("%traceback_memory --hint 1GB").text("stdout")
    assert said == "a hint after a cell whose error keeps 1.00 GiB or more\n"
    assert kernel.run("fails()").texts("display") == []
    kernel.ok("%traceback_memory --hint on")
    assert len(kernel.run("fails()").texts("display")) == 1


def test_no_hint_for_what_the_notebook_holds_anyway(kernel: Kernel) -> None:
    kernel.ok("big = torch.ones(N)\ndef use(x): raise ValueError\nholder = {'k': [big]}")
    assert kernel.run("use(big)").texts("display") == []
    assert kernel.run("use(holder)").texts("display") == []
    assert kernel.run("small = torch.ones(9)\nuse(small)").texts("display") == []
    kernel.ok("del big, holder")


def test_out_of_memory_is_told_at_once(kernel: Kernel) -> None:
    (hint,) = kernel.run("torch.empty(10**14)").texts("display")
    assert "Out of memory on cpu: 364 TiB were asked for" in hint.replace("\n", " ")
    shown = kernel.ok("%traceback_memory").text("display")
    assert "asked for" in shown


def test_what_debug_and_tb_say_afterwards(kernel: Kernel) -> None:
    kernel.run("fails()")
    advice = kernel.ok("%traceback_memory").text("display")
    assert "run it first if you need it" in advice.replace("\n   ", " ")
    kernel.ok("%traceback_memory --drop ;")
    assert "No traceback" in str(kernel.run("%tb").shown)
    assert "No traceback" in str(kernel.run("%debug").shown)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("%traceback_memory --hint 3X", "--hint takes on, off or a size such as 256MB, not 3X"),
        ("%traceback_memory --nope", "unknown option --nope"),
    ],
)
def test_usage_errors(kernel: Kernel, line: str, error: str) -> None:
    reply = kernel.run(line)
    assert (reply.status, reply.error.partition(" (see")[0]) == (
        "error",
        f"UsageError: %traceback_memory: {error}",
    )
