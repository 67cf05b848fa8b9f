"""What the operating system says, and what becomes of it when it says nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

import nbinspect
from nbinspect import _torch
from nbinspect.blocks import Unavailable
from nbinspect.memory import system
from nbinspect.memory.gauges import gauges

GIB = 1 << 30


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in place of the system's cgroup files."""
    monkeypatch.setattr(system, "CGROUP", tmp_path)
    monkeypatch.delenv("MEM_LIMIT", raising=False)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """Ask the system anew for what does not change while a program runs."""
    for known in (system._cgroup_files, system._opened, system._ram_bytes):
        known.cache_clear()


def write(folder: Path, limit_file: str, limit: str, used_file: str, used: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / limit_file).write_text(f"{limit}\n")
    (folder / used_file).write_text(f"{used}\n")


def test_without_a_limit_it_is_the_machine(cgroup: Path) -> None:
    host = system.host_memory()
    assert host.total_bytes == psutil.virtual_memory().total
    assert host.total_note == "the machine's RAM"
    assert isinstance(host.process_bytes, int)
    assert host.process_bytes > 10 << 20


def test_a_containers_limit(cgroup: Path) -> None:
    write(cgroup, "memory.max", str(GIB), "memory.current", "12345")
    host = system.host_memory()
    assert (host.total_bytes, host.used_bytes) == (GIB, 12345)
    assert host.total_note == "the container's limit"
    cpu = nbinspect.gpumem(device="cpu").device("cpu")
    assert (cpu.total_bytes, cpu.free_bytes) == (GIB, GIB - 12345)
    assert cpu.others_bytes == 0
    assert "of 1.00 GiB, the container's limit" in nbinspect.gpumem().text()


def test_an_old_kernels_limit(cgroup: Path) -> None:
    write(cgroup / "memory", "memory.limit_in_bytes", str(GIB), "memory.usage_in_bytes", "7")
    assert system.host_memory().total_bytes == GIB
    (cgroup / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712")  # none
    assert system.host_memory().total_note == "the machine's RAM"


@pytest.mark.parametrize("text", ["max", "", "nonsense", str(1 << 62)])
def test_files_that_set_no_limit(cgroup: Path, text: str) -> None:
    write(cgroup, "memory.max", text, "memory.current", "12345")
    assert system.host_memory().total_note == "the machine's RAM"


def test_a_limit_whose_use_cannot_be_read(cgroup: Path) -> None:
    write(cgroup, "memory.max", str(GIB), "memory.current", "what?")
    cpu = nbinspect.gpumem(device="cpu").device("cpu")
    assert cpu.total_bytes == GIB
    assert isinstance(cpu.free_bytes, Unavailable)
    assert "memory.current holds no number" in cpu.free_bytes.reason
    assert isinstance(cpu.others_bytes, Unavailable)


def test_a_use_file_that_is_not_there(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text(str(GIB))
    host = system.host_memory()
    assert host.total_bytes == GIB
    assert isinstance(host.used_bytes, Unavailable)


@pytest.mark.parametrize(
    ("hub", "note"), [(GIB // 2, "the hub's limit"), (2 * GIB, "the container's limit")]
)
def test_the_nearest_limit_wins(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch, hub: int, note: str
) -> None:
    write(cgroup, "memory.max", str(GIB), "memory.current", "12345")
    monkeypatch.setenv("MEM_LIMIT", str(hub))
    host = system.host_memory()
    assert (host.total_bytes, host.total_note) == (min(hub, GIB), note)


def test_a_hubs_limit_that_is_no_number(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEM_LIMIT", "2G")
    assert system.host_memory().total_note == "the machine's RAM"


def refuse(*_args: Any) -> Any:
    raise psutil.AccessDenied(msg="not allowed here")


def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this be a system that has no such files."""
    monkeypatch.setattr(system, "STATM", "/nowhere/{}")
    monkeypatch.setattr(system, "MEMINFO", "/nowhere/meminfo")


def test_every_system_says_the_same(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = system.host_memory()
    with monkeypatch.context() as patch:
        no_proc(patch)
        elsewhere = system.host_memory()
    assert (here.total_bytes, here.total_note) == (elsewhere.total_bytes, elsewhere.total_note)
    for name, apart in (("process_bytes", 0.05), ("used_bytes", 0.25)):
        assert getattr(here, name) == pytest.approx(getattr(elsewhere, name), rel=apart)


def test_a_reading_is_of_now_and_of_this_process(cgroup: Path) -> None:
    before = system.process_bytes()
    held = torch.ones(32 << 20)
    assert isinstance(before, int)
    grown = system.process_bytes()
    assert isinstance(grown, int)
    assert grown > before + (100 << 20)
    del held
    code = "from nbinspect.memory.system import process_bytes as p; import os; p(); r = os.fork();"
    code += "x = bytearray(1 << 27) if not r else b''; print(p() > 1 << 27, flush=True);"
    code += "r and os.wait()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == ["False", "True"]


def test_a_system_that_does_not_answer(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    monkeypatch.setattr(psutil, "Process", refuse)
    no_proc(monkeypatch)
    host = system.host_memory()
    for reading in (host.total_bytes, host.used_bytes, host.process_bytes):
        assert isinstance(reading, Unavailable)
        assert "not allowed here" in reading.reason
    snapshot = nbinspect.gpumem(device="cpu")
    assert "not allowed here" in snapshot.text()
    assert not re.search(r"(?<![\d.])0 B", snapshot.text())
    (bar,) = gauges()
    assert bar.segments == ()
    assert "not allowed here" in bar.note
    assert type(snapshot).from_dict(snapshot.to_dict()) == snapshot


def test_a_limit_where_the_system_does_not_answer(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(cgroup, "memory.max", str(GIB), "memory.current", "12345")
    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    no_proc(monkeypatch)
    host = system.host_memory()
    assert (host.total_bytes, host.used_bytes) == (GIB, 12345)


def test_what_torch_does_not_count_is_said() -> None:
    cpu = nbinspect.gpumem(device="cpu").device("cpu")
    assert isinstance(cpu.allocated_bytes, Unavailable)
    assert "does not count CPU memory" in cpu.allocated_bytes.reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with an accelerator")
def test_without_an_accelerator_there_is_only_the_cpu() -> None:
    assert _torch.accelerators() == ()
    assert [one.device for one in nbinspect.gpumem().devices] == ["cpu"]
    assert [bar.label for bar in gauges()] == ["cpu"]
    with pytest.raises(ValueError, match="no device 'cuda' here; this process has cpu"):
        nbinspect.gpumem(device="cuda")
    for device in ("cuda:0", "xpu:0"):
        counters = _torch.allocator_counters(torch.device(device))
        assert isinstance(counters.total_bytes, Unavailable)
        assert isinstance(_torch.free_blocks(torch.device(device)), Unavailable)


@pytest.mark.parametrize("top", [0, -1])
def test_top_must_be_positive(top: int) -> None:
    with pytest.raises(ValueError, match=f"top must be at least 1, not {top}"):
        nbinspect.gpumem(top=top)


def test_nvml_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpu = system.gpu_memory(0)
    for reading in (gpu.total_bytes, gpu.free_bytes, gpu.process_bytes):
        assert isinstance(reading, Unavailable)
        assert reading.reason.startswith("NVML: ")


def test_nvml_that_hides_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: closed.append(True),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=100, free=60, used=40),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [
            SimpleNamespace(pid=1, usedGpuMemory=9)
        ],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpu = system.gpu_memory(0)
    assert (gpu.total_bytes, gpu.free_bytes) == (100, 60)
    assert isinstance(gpu.process_bytes, Unavailable)
    assert closed == [True]


def test_what_is_used_is_not_known(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(cgroup, "memory.max", str(GIB), "memory.current", "what?")
    monkeypatch.setattr(psutil, "Process", refuse)
    no_proc(monkeypatch)
    text = nbinspect.gpumem(device="cpu").text(width=200)
    assert "1.00 GiB, the container's limit" in text
    assert "not allowed here" in text
    assert not re.search(r"(?<![\d.])0 B", text)
