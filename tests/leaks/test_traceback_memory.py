"""What an error keeps: by call, only here or not, let go, and left alone where the user keeps it."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import nbinspect
from nbinspect.leaks import TracebackMemory, glance
from nbinspect.leaks.out_of_memory import is_about_memory, out_of_memory
from nbinspect.notebook import LAST_ERROR

KIB = 1024


@pytest.fixture
def fail() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Let a function fail as a console would see it: the error is kept in `sys`."""

    def run(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            sys.last_value = error
            sys.last_traceback = error.__traceback__
            sys.last_type = type(error)

    yield run
    for name in LAST_ERROR:
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()


def frames(found: TracebackMemory) -> dict[str, tuple[tuple[str, ...], int, int]]:
    return {
        one.function: (one.names, one.size_bytes, one.only_here_bytes)
        for one in found.frames
        if one.function != "run"
    }


def test_no_error_keeps_nothing():
    assert nbinspect.traceback_memory() == TracebackMemory("", (), 0, 0, ())
    assert nbinspect.traceback_memory(drop=True).dropped is False
    assert "No error is kept" in nbinspect.traceback_memory().text()


def test_each_call_with_its_variables_and_what_nothing_else_holds(fail):
    mine = torch.ones(256)

    def inner(x: torch.Tensor) -> None:
        scratch = torch.ones(512)
        raise RuntimeError(f"bad\nvalue {scratch.shape} {x.shape}")

    def outer(given: torch.Tensor) -> None:
        batch = [torch.ones(256), torch.ones(256)]
        inner(batch[0])

    fail(lambda: outer(mine))
    found = nbinspect.traceback_memory()
    assert found.error == "RuntimeError: bad"
    assert frames(found) == {
        "outer": (("batch", "given"), 3 * KIB, 2 * KIB),
        "inner": (("scratch", "x"), 3 * KIB, 3 * KIB),
        "<lambda>": (("mine",), KIB, 0),
    }
    assert (found.total_bytes, found.only_here_bytes) == (5 * KIB, 4 * KIB)
    assert found.held_by == ("sys.last_value", "sys.last_traceback")
    where = next(one.where for one in found.frames if one.function == "inner")
    assert where.text.startswith("raise RuntimeError")
    assert TracebackMemory.from_dict(found.to_dict()) == found


def test_drop_frees_exactly_what_only_the_error_kept(fail):
    probes = []
    mine = torch.ones(256)

    def work() -> None:
        scratch = torch.ones(512) * mine[0]
        probes.append(weakref.ref(scratch))
        raise ValueError("no")

    fail(work)
    assert probes[0]() is not None
    found = nbinspect.traceback_memory(drop=True)
    assert probes[0]() is None
    assert (found.dropped, found.dropped_bytes) == (True, 2 * KIB)
    assert not any(hasattr(sys, name) for name in LAST_ERROR)
    assert mine.sum() == 256
    assert "Let go: 2.00 KiB" in found.text()


def test_an_error_that_the_user_keeps_stays_whole(fail):
    kept = []

    def work() -> None:
        scratch = torch.ones(512)
        raise ValueError(scratch.shape)

    def caught() -> None:
        try:
            work()
        except ValueError as error:
            kept.append(error)
            give_up(error)

    def give_up(error: Exception) -> None:
        more = torch.ones(256)
        raise RuntimeError(more.shape) from error

    fail(caught)
    found = nbinspect.traceback_memory(drop=True)
    assert (found.total_bytes, found.only_here_bytes) == (3 * KIB, 1 * KIB)
    assert (found.dropped, found.dropped_bytes) == (True, 1 * KIB)
    assert kept[0].__traceback__.tb_next.tb_frame.f_code.co_name == "work"
    assert "under a name of your own" in found.text()
    kept.clear()


def chained() -> None:
    def first() -> None:
        a = torch.ones(256)
        raise KeyError(a.shape)

    try:
        first()
    except KeyError:
        b = torch.ones(512)
        raise ValueError(b.shape)  # noqa: B904 - the context is what is looked at


def grouped() -> None:
    errors = []
    for n in (256, 512):
        try:
            torch.ones(n).view(7)
        except RuntimeError as error:
            errors.append(error)
    a = torch.ones(768)
    raise ExceptionGroup(str(a.shape), errors)


def interrupted() -> None:
    a = torch.ones(768)
    raise KeyboardInterrupt(a.shape)


def with_arguments() -> None:
    raise RuntimeError("bad batch", torch.ones(768))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 1)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        raise RuntimeError(f"in backward {x.shape}")


def in_backward() -> None:
    x = torch.ones(768, requires_grad=True)
    Cube.apply(x).sum().backward()


def in_a_cycle_with_itself() -> None:
    try:
        raise ValueError
    except ValueError as error:
        kept = error  # the call holds the error, which holds the call
        a = torch.ones(768)
        raise RuntimeError(a.shape, kept is None) from error


@pytest.mark.parametrize(
    "function",
    [chained, grouped, interrupted, with_arguments, in_backward, in_a_cycle_with_itself],
    ids=lambda one: one.__name__,
)
def test_kinds_of_error(function, fail):
    fail(function)
    before = nbinspect.traceback_memory()
    assert before.only_here_bytes >= 3 * KIB
    assert sum(one.only_here_bytes for one in before.frames)
    found = nbinspect.traceback_memory(drop=True)
    assert found.dropped
    assert found.dropped_bytes == before.only_here_bytes


def test_what_an_error_holds_itself_is_named(fail):
    class BatchError(Exception):
        def __init__(self, batch: dict[str, torch.Tensor]) -> None:
            super().__init__("bad batch")
            self.batch = batch

    def work() -> None:
        raise BatchError({"x": torch.ones(768)})

    fail(work)
    found = nbinspect.traceback_memory(drop=False)
    (own,) = (one for one in found.frames if not one.function)
    assert (own.names, own.only_here_bytes, own.error) == (("batch",), 3 * KIB, "BatchError")
    assert "the BatchError itself" in found.text()
    assert nbinspect.traceback_memory(drop=True).dropped


def test_what_is_left_in_a_cycle_is_said(fail):
    def work() -> None:
        class Trainer:
            def __init__(self) -> None:
                self.weights = torch.ones(768)
                self.callback = self.work

            def work(self) -> None:
                raise ValueError

        Trainer().work()

    fail(work)
    found = nbinspect.traceback_memory(drop=True)
    assert (found.dropped, found.dropped_bytes) == (False, 0)
    assert "gc.collect()" in found.text()


def test_a_runaway_recursion(fail):
    def down(n: int, x: torch.Tensor) -> None:
        y = x + 1
        if n == 0:
            raise RecursionError(y.shape)
        down(n - 1, y)

    fail(lambda: down(600, torch.ones(64)))
    found = nbinspect.traceback_memory(drop=True)
    assert found.dropped
    assert found.only_here_bytes == 602 * 256
    assert found.n_more_frames > 300
    assert len(found.text().splitlines()) < 40


def test_hostile_errors(fail):
    class Hostile(Exception):
        __traceback__ = property(lambda self: 1 / 0)  # type: ignore[assignment]
        __context__ = property(lambda self: 1 / 0)  # type: ignore[assignment]

        def __str__(self) -> str:
            raise KeyError

    def work() -> None:
        a = torch.ones(768)
        raise Hostile(a.shape)

    with pytest.raises(ZeroDivisionError):  # Python's own console cannot show it either
        fail(work)
    sys.last_value = Hostile("<script>alert(1)</script>")
    found = nbinspect.traceback_memory(drop=True)
    assert found.error == "Hostile"
    assert found.dropped
    sys.last_value = ValueError("<script>alert(1)</script>\x1b[31m")
    assert "<script" not in nbinspect.traceback_memory().html()


OLD = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 5.31 GiB "
    "already allocated; 19.44 MiB free; 5.42 GiB reserved in total by PyTorch) If reserved memory "
    "is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
)
NEW = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 23.69 GiB of "
    "which 1.50 GiB is free. Including non-PyTorch memory, this process has 22.00 GiB memory in "
    "use. Of the allocated memory 18.00 GiB is allocated by PyTorch, and 3.00 GiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
MPS = (
    "MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 224.00 MB, max "
    "allowed: 18.13 GB). Tried to allocate 256.00 KB on private pool."
)
WINDOWS = (
    "[enforce fail at alloc_cpu.cpp:117] data. DefaultCPUAllocator: not enough memory: you "
    "tried to allocate 31850496000 bytes."
)
NO_PART_FREE = (  # torch 2.1, misspelt there
    "CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty of 6.00 GiB of which 0 "
    "bytes is free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is "
    "reserved by PyTorch but unallocated."
)
CACHED = (  # torch 1.3
    "CUDA out of memory. Tried to allocate 1024.00 KiB (GPU 0; 11.17 GiB total capacity; 10.90 GiB "
    "already allocated; 576.00 KiB free; 30.96 MiB cached)"
)
HIP = (
    "HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 15.24 GiB of which "
    "15.09 GiB is free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is "
    "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
BUS = (
    "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit."
)
POOLS = NEW.replace(
    "18.00 GiB is allocated by PyTorch, and",
    "18.00 GiB is allocated by PyTorch, with 5.00 GiB allocated in private pools (e.g., CUDA "
    "Graphs), and",
).replace("Including non-PyTorch memory, this process has", "Process 4242 has")
XPU = (
    "XPU out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 11.60 GiB. Of the "
    "allocated memory 9.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but "
    "unallocated. Please use `empty_cache` to release all unoccupied cached memory."
)
DRIVER = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"
CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("said", "device", "asked", "free", "allocated", "unallocated"),
    [
        (OLD, "cuda:0", 20 * MIB, round(19.44 * MIB), round(5.31 * GIB), 118111601),
        (NEW, "cuda:1", 2 * GIB, round(1.5 * GIB), 18 * GIB, 3 * GIB),
        (POOLS, "cuda:1", 2 * GIB, round(1.5 * GIB), 18 * GIB, 3 * GIB),
        (XPU, "xpu:1", 2 * GIB, None, 9 * GIB, GIB),
        (DRIVER, "cuda:0", None, None, None, None),
        (CUBLAS, "cuda:0", None, None, None, None),
        (MPS, "mps:0", 256 * KIB, None, 17 * GIB, None),
        (NO_PART_FREE, "cuda:0", round(1.7 * GIB), 0, round(2.93 * GIB), round(2.3 * GIB)),
        (CACHED, "cuda:0", MIB, 576 * KIB, round(10.9 * GIB), round(30.96 * MIB)),
        (HIP, "cuda:0", 16 * GIB, round(15.09 * GIB), 0, 0),
        (WINDOWS, "cpu", 31_850_496_000, ..., ..., None),
        (BUS, "shared memory", None, ..., ..., None),
    ],
    ids=[
        "cuda before 2.1", "cuda", "pools", "xpu", "driver", "cublas", "mps", "cuda 2.1",
        "cuda 1.3", "hip", "windows", "bus error",
    ],
)  # fmt: skip
def test_what_an_allocator_says(said, device, asked, free, allocated, unallocated):
    oom = out_of_memory([ValueError("x"), RuntimeError(said)], {})
    assert oom is not None
    assert oom.device == device
    for got, wanted in [
        (oom.asked_bytes, asked),
        (oom.free_bytes, free),
        (oom.allocated_bytes, allocated),
        (oom.unallocated_bytes, unallocated),
    ]:
        if wanted is None:
            assert isinstance(got, nbinspect.Unavailable)
        elif wanted is not ...:
            assert abs(got - wanted) < 2


REFUSED = """
import resource, numpy, torch
torch.set_num_threads(1)
from nbinspect.leaks.out_of_memory import out_of_memory
convolution, image = torch.nn.Conv2d(3, 64, 3), torch.ones(64, 3, 256, 256)
with open("/proc/self/statm") as file:
    limit = 4096 * int(file.read().split()[0]) + (300 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for code in CODES:
    try:
        eval(code)
    except Exception as error:
        found = out_of_memory([error], {})
        asked = found and found.asked_bytes
        print(found and found.device, asked if isinstance(asked, int) else None)
"""
"""What a process of its own says of code that its limit refuses."""
CODES = {
    "torch.empty(10**14)": ("cpu", 4 * 10**14),
    "torch.zeros(1 << 30, dtype=torch.uint8)": ("cpu", 1 << 30),
    "convolution(image)": ("cpu", 64 * 64 * 254 * 254 * 4),
    "torch.cat([image] * 10)": ("cpu", 10 * 64 * 3 * 256 * 256 * 4),
    "numpy.ones(1 << 28)": ("cpu", 2 << 30),
    "bytes(1 << 30)": ("cpu", None),
    "[0] * (1 << 28)": ("cpu", None),
    "torch.from_file(FILE, shared=True, size=1 << 28)": ("cpu", 1 << 30),
    "torch.UntypedStorage._new_shared(10**14)": ("shared memory", None),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit as Linux keeps it")
def test_what_the_host_really_refuses(tmp_path):
    code = f"CODES, FILE = {list(CODES)}, {str(tmp_path / 'x')!r}\n{REFUSED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = [tuple(line.rsplit(" ", 1)) for line in done.stdout.splitlines()]
    assert dict(zip(CODES, told, strict=True)) == {
        code: (device, str(asked)) for code, (device, asked) in CODES.items()
    }


def test_the_setting_is_named_only_where_it_helps_and_is_not_on(monkeypatch):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)

    def setting(said: str) -> str:
        oom = out_of_memory([RuntimeError(said)], {})
        assert oom is not None
        return oom.setting

    assert setting(NEW) == (
        "import os; os.environ['PYTORCH_ALLOC_CONF'] = 'expandable_segments:True'"
    )
    assert "PYTORCH_CUDA_ALLOC_CONF" in setting(OLD)
    assert setting(NEW.replace("3.00 GiB is reserved", "3.00 MiB is reserved")) == ""
    assert setting(WINDOWS) == setting(MPS) == ""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:128")
    assert "'max_split_size_mb:128,expandable_segments:True'" in setting(NEW)
    monkeypatch.setenv("PYTORCH_HIP_ALLOC_CONF", "expandable_segments:True")
    assert setting(NEW) == ""


def test_out_of_memory_names_what_to_let_go_of(fail):
    def work() -> None:
        held = torch.ones(1 << 20)
        torch.empty(10**14 * held.ndim)

    fail(work)
    found = nbinspect.traceback_memory()
    assert found.oom is not None
    first = found.oom.let_go[0]
    assert (first.code, first.size_bytes) == ("%traceback_memory --drop", 4 << 20)
    assert found.text().startswith("Out of memory on cpu: 364 TiB were asked for, ")
    assert TracebackMemory.from_dict(found.to_dict()) == found


def in_a_call_far_out() -> None:
    def down(n: int) -> None:
        down(n + 1)

    held = torch.ones(768)
    down(held.ndim)


@pytest.mark.parametrize(
    "function",
    [in_a_call_far_out, with_arguments, chained, grouped, in_backward],
    ids=lambda one: one.__name__,
)
def test_a_glance_sees_it_wherever_it_is(function, fail):
    fail(function)
    assert glance.worth_a_look(3 * KIB)


@pytest.mark.parametrize(
    "refused",
    [lambda: torch.UntypedStorage._new_shared(10**14), lambda: bytes(1 << 50)],
    ids=["shared memory", "Python"],
)
def test_a_refusal_without_a_size_is_told_too(refused, fail):
    held = torch.ones(256)
    fail(refused)
    assert glance.worth_a_look(1 << 40)
    found = nbinspect.traceback_memory()
    assert found.oom is not None
    assert found.text().startswith(f"Out of {found.oom.device.replace('cpu', 'memory on cpu')}, ")
    assert "in all" in found.text()
    is_shared = found.oom.device == "shared memory"
    assert ("workers" in found.text()) == is_shared == (not found.oom.holdings)
    assert held.ndim == 1


def test_a_glance_tells_much_from_little(fail):
    model = nn.Linear(512, 512)

    def work() -> None:
        hidden = model(torch.ones(1024, 512))
        holder = {"k": [(hidden.relu().exp(),)]}
        raise ValueError(str(holder.keys()))

    fail(work)
    assert glance.worth_a_look(3 << 20)
    assert not glance.worth_a_look(16 << 20)
    assert is_about_memory(WINDOWS)
    assert not is_about_memory("we are out of memory today")
