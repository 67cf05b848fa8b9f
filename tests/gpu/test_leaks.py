"""Growth, errors and snapshots on a CUDA device; the same on the CPU is in tests/leaks."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import nbinspect

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
    del sys.last_value
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
