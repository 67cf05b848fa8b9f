"""Growth, errors and snapshots on a CUDA device; the same on the CPU is in tests/leaks."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import nbinspect
from nbinspect.snapshots import record_snapshot

MIB = 1 << 20


@pytest.fixture
def cuda():
    device = torch.device("cuda:0")
    torch.ones(1, device=device)
    return device


def test_growth_on_the_device_is_named_with_its_bytes(cuda):
    kept = []
    report = nbinspect.leakwatch(lambda: kept.append(torch.ones(MIB, device=cuda)), 4)
    (growth,) = report.growths
    assert (growth.device, growth.bytes_per_run, growth.container) == ("cuda:0", 4 * MIB, "list")
    row = next(one for one in report.devices if one.name == "cuda:0")
    assert row.bytes_per_run == 4 * MIB
    kept.clear()


def test_pinned_memory_has_a_row_of_its_own(cuda):
    kept = []
    report = nbinspect.leakwatch(lambda: kept.append(torch.ones(MIB).pin_memory()), 4)
    row = next(one for one in report.devices if one.name == "pinned host memory")
    assert row.bytes_per_run == 4 * MIB
    assert sum(one.bytes_per_run for one in report.growths) == 4 * MIB
    kept.clear()


@pytest.mark.keeps_tensors(reason="cuBLAS keeps its workspace")
def test_a_healthy_loop_raises_no_alarm(cuda):
    model = nn.Linear(64, 64, device=cuda)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        model(torch.ones(8, 64, device=cuda)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert nbinspect.leakwatch(step, 5).healthy


def test_out_of_memory_agrees_with_what_the_device_says(cuda):
    total = torch.cuda.get_device_properties(cuda).total_memory

    def fail() -> None:
        held = torch.ones(MIB, device=cuda)
        torch.empty(2 * total, dtype=torch.uint8, device=held.device)

    try:
        fail()
    except torch.OutOfMemoryError as error:
        sys.last_value = error
    found = nbinspect.traceback_memory(drop=True)
    assert not hasattr(sys, "last_value")
    assert found.oom is not None
    assert found.oom.device == "cuda:0"
    for told, wanted in [(found.oom.asked_bytes, 2 * total), (found.oom.total_bytes, total)]:
        assert isinstance(told, int)
        assert abs(told - wanted) < 0.01 * wanted  # the message rounds to two figures
    assert found.dropped_bytes >= 4 * MIB


def test_a_snapshot_on_the_spot_and_from_a_file_agree_with_the_allocator(cuda, tmp_path):
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    try:
        before = torch.cuda.memory_allocated(cuda)
        held = torch.ones(8 * MIB, dtype=torch.uint8, device=cuda)
        torch.ones(16 * MIB, dtype=torch.uint8, device=cuda)
        torch.cuda.memory._dump_snapshot(str(tmp_path / "run.pickle"))
    finally:
        torch.cuda.memory._record_memory_history(None)
    record = nbinspect.memsnapshot(tmp_path / "run.pickle", device=0)
    assert record.allocated_bytes == torch.cuda.memory_allocated(cuda)
    assert record.reserved_bytes == torch.cuda.memory_reserved(cuda)
    assert record.peak_bytes == before + 24 * MIB
    lines = [one.where.file for one in record.alive_at(record.peak_time_s) if one.where]
    assert any(file.endswith("test_leaks.py") for file in lines)
    del held


def test_the_log_of_a_snapshot_on_the_spot_names_the_lines(cuda):
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    try:
        held = torch.ones(8 * MIB, dtype=torch.uint8, device=cuda)
        record = record_snapshot()
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert record.allocated_bytes == sum(
        torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())
    )
    lines = [one.where.file for one in record.alive_at(record.timeline[-1].time_s) if one.where]
    assert any(file.endswith("test_leaks.py") for file in lines)
    del held


def test_parts_run_apart_leave_every_generator_as_it_was(cuda, recwarn):
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).to(cuda)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.ones(2, 8, device=cuda)]
    before = torch.cuda.get_rng_state_all()
    report = nbinspect.leakwatch(
        lambda: None, 2, isolate=True, model=model, loader=data, optimizer=optimizer
    )
    after = torch.cuda.get_rng_state_all()
    assert len(report.by_part) > 1
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert [str(one.message) for one in recwarn if "devices" in str(one.message)] == []


EXPANDABLE = """
import os, sys
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch, nbinspect
torch.cuda.memory._record_memory_history(max_entries=10_000)
held = [torch.ones(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
del held[::2]
torch.cuda.memory._dump_snapshot(sys.argv[1])
record = nbinspect.memsnapshot(sys.argv[1], device=0)
assert record.allocated_bytes == torch.cuda.memory_allocated(0), record.allocated_bytes
assert record.reserved_bytes == torch.cuda.memory_reserved(0), record.reserved_bytes
assert record.peak_bytes == torch.cuda.max_memory_allocated(0), record.peak_bytes
assert "expandable_segments" not in str(record).partition("settings")[0], str(record)
def fail():
    torch.empty(2 * torch.cuda.get_device_properties(0).total_memory, dtype=torch.uint8, device="cuda")
try:
    fail()
except torch.OutOfMemoryError as error:
    sys.last_value = error
told = str(nbinspect.traceback_memory())
assert "asked for" in told and "expandable_segments" not in told, told
"""


def test_expandable_segments_are_read_and_not_advised_again(cuda, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", EXPANDABLE, str(tmp_path / "run.pickle")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
