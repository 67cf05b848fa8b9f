"""Growth, references and errors on a second device."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import nbinspect

MIB = 1 << 20


@pytest.fixture
def failed():
    """Fails a call for want of memory, and keeps the error as an interactive session does."""

    def keep(call) -> None:
        try:
            call()
        except torch.OutOfMemoryError as error:
            sys.last_value = error

    yield keep
    if hasattr(sys, "last_value"):
        del sys.last_value


def test_growth_on_a_device_is_named_with_its_bytes(torch_card):
    kept = []
    report = nbinspect.leakwatch(lambda: kept.append(torch.ones(MIB, device="card:1")), 4)
    (growth,) = report.growths
    assert (growth.device, growth.bytes_per_run, growth.container) == ("card:1", 4 * MIB, "list")
    assert "torch.ones(MIB" in growth.where.text
    rows = {one.name: one.bytes_per_run for one in report.devices}
    assert rows["card:1"] == 4 * MIB
    assert torch_card.counted().reads == 0
    kept.clear()


def test_growth_of_a_device_explains_none_of_the_processs(torch_card):
    """Device memory is another one, so the process's own size is not told to be explained by it."""
    kept = []
    report = nbinspect.leakwatch(lambda: kept.append(torch.ones(MIB, device="card")), 4)
    assert "0 B of it explained above" in report.html()
    kept.clear()


def test_pinned_memory_has_a_row_of_its_own(torch_card):
    kept = []
    report = nbinspect.leakwatch(lambda: kept.append(torch.ones(MIB).pin_memory()), 4)
    rows = {one.name: one.bytes_per_run for one in report.devices}
    assert rows["pinned host memory"] == 4 * MIB
    assert sum(one.bytes_per_run for one in report.growths) == 4 * MIB
    kept.clear()


def test_a_healthy_loop_raises_no_alarm(torch_card):
    model = nn.Linear(64, 64).to("card")
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        model(torch.ones(8, 64, device="card")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert nbinspect.leakwatch(step, 5).healthy


def test_isolating_the_parts_of_a_step_tells_which_leaks(torch_card):
    model = nn.Linear(64, 64).to("card")
    kept = []

    class Leaky(nn.Module):
        def forward(self, x):
            kept.append(x * 2)
            return model(x)

    leaky = Leaky()
    batches = [torch.ones(256, 64, device="card")] * 3

    def step() -> None:
        for batch in batches:
            leaky(batch).sum().backward()
            model.zero_grad()

    report = nbinspect.leakwatch(step, 4)
    (growth,) = report.growths
    assert growth.device == "card:0"
    assert growth.bytes_per_run == 3 * 256 * 64 * 4
    assert growth.where.text.strip() == "kept.append(x * 2)"
    kept.clear()


def test_who_holds_a_tensor_of_a_device_is_complete(torch_card):
    model = nn.Linear(64, 64).to("card")
    hidden = model(torch.ones(8, 64, device="card"))
    losses = [hidden.tanh().sum()]
    torch_card.counted()
    found = nbinspect.refchain(hidden, name="hidden")
    assert torch_card.counted().kernels == 0
    assert found.complete
    assert "8x64 float32" in found.text()
    assert any("hidden" in str(chain) for chain in found.chains)
    del losses


def test_what_an_error_keeps_on_each_device(torch_card, failed):
    def inner(here):
        there = torch.ones(3 * MIB, device="card:1")
        with torch_card.room(MIB, index=0):
            return there, torch.empty(64 * MIB, device="card:0")

    def outer():
        here = torch.ones(2 * MIB, device="card:0")
        inner(here)

    failed(outer)
    found = nbinspect.traceback_memory()
    assert found.only_here_bytes == 20 * MIB
    sizes = {one.function: one.only_here_bytes for one in found.frames}
    assert (sizes["outer"], sizes["inner"]) == (8 * MIB, 20 * MIB)
    # What the error keeps on the other device is no help to this one.
    assert [one.size_bytes for one in found.oom.let_go if "--drop" in one.code] == [8 * MIB]
    before = torch.accelerator.memory_allocated(1)
    dropped = nbinspect.traceback_memory(drop=True)
    assert dropped.dropped
    assert dropped.dropped_bytes == 20 * MIB
    assert before - torch.accelerator.memory_allocated(1) == 12 * MIB


def test_a_failed_allocation_says_what_was_asked_what_was_free_and_what_to_let_go(
    torch_card, failed
):
    torch.accelerator.empty_cache()
    names = vars(sys.modules["__main__"])
    names["big"] = torch.ones(16 * MIB, device="card:1")
    names["acts"] = [torch.ones(2 * MIB, device="card:1") for _ in range(5)]
    names["other"] = torch.ones(32 * MIB, device="card:0")
    cached = torch.ones(7 * MIB, device="card:1")
    allocated = torch.accelerator.memory_allocated(1) - 28 * MIB
    del cached
    try:
        with torch_card.room(50 * MIB, index=1, others=5 * MIB):
            _, total = torch.accelerator.get_memory_info(1)
            failed(lambda: torch.empty(300 * MIB, dtype=torch.uint8, device="card:1"))
            found = nbinspect.traceback_memory()
    finally:
        for name in ("big", "acts", "other"):
            del names[name]
    oom = found.oom
    assert oom.device == "card:1"
    assert oom.asked_bytes == 300 * MIB
    assert oom.free_bytes == pytest.approx(78 * MIB, rel=0.01)  # the cache was emptied first
    assert oom.total_bytes == pytest.approx(total, rel=0.01)
    assert oom.allocated_bytes == pytest.approx(allocated, rel=0.01)
    assert oom.setting == ""  # no allocator but CUDA's has it
    assert oom.holdings[0].owner == "big"
    told = [(one.code, one.size_bytes) for one in oom.let_go]
    assert told[:2] == [("del big", 64 * MIB), ("acts.clear()", 40 * MIB)]
    assert all("other" not in code for code, _ in told)


def test_a_list_too_long_to_show_item_by_item_is_let_go_of_as_a_whole(torch_card, failed):
    names = vars(sys.modules["__main__"])
    names["cache"] = {n: torch.ones(MIB, device="card") for n in range(20)}
    try:
        with torch_card.room(MIB):
            failed(lambda: torch.empty(64 * MIB, device="card"))
            found = nbinspect.traceback_memory()
    finally:
        del names["cache"]
    first = found.oom.let_go[0]
    assert (first.code, first.size_bytes) == ("cache.clear()", 80 * MIB)


def test_a_loop_that_runs_out_goes_on_after_letting_go(torch_card, failed):
    def step():
        held = torch.ones(2 * MIB, device="card")
        return held, torch.empty(3 * MIB, device="card")

    with torch_card.room(16 * MIB):
        failed(step)
        nbinspect.traceback_memory(drop=True)
        assert torch.empty(3 * MIB, device="card").numel()
