"""Memory on a real second device: counters, census, a cell's peak, and looking without touching."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nbinspect
from nbinspect.memory.gauges import gauges

MIB = 1 << 20
ALLOCATED = "allocated_bytes.all.current"


def stats():
    return [dict(torch.accelerator.memory_stats(index)) for index in (0, 1)]


@pytest.fixture
def trained():
    """A model whose Adam has stepped; all are several blocks, so that rounding does not count."""
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 128)).to("card")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(8, 512, device="card")).square().mean().backward()
    optimizer.step()
    return model, optimizer


def test_holders_add_up_to_what_the_allocator_counts(torch_card, trained):
    model, _ = trained
    losses = [model(torch.ones(64, 512, device="card")).mean() for _ in range(3)]
    found = nbinspect.gpumem().device("card:0")
    kinds = dict(found.by_kind)
    parameter_bytes = sum(p.nbytes for p in model.parameters())
    assert kinds["PARAMETER"] == kinds["GRADIENT"] == parameter_bytes
    assert kinds["OPTIMIZER_STATE"] == 2 * parameter_bytes
    assert kinds["SAVED_FOR_BACKWARD"] >= 3 * 64 * 512 * 4
    assert found.allocated_bytes == torch.accelerator.memory_allocated(0)
    assert found.reserved_bytes == torch.accelerator.memory_reserved(0)
    free, total = torch.accelerator.get_memory_info(0)
    assert (found.free_bytes, found.total_bytes) == (free, total)
    # All that a test's locals hold has a name; what is left is rounding to blocks of 512 bytes.
    rest = found.allocated_bytes - found.tracked_bytes
    assert 0 <= rest < 512 * torch.accelerator.memory_stats(0)["allocation.all.current"]
    owners = {one.owner.rpartition("variable ")[2] for one in found.holdings}
    assert {"model.0.weight", "model.0.weight.grad", "losses[0..2]"} <= owners
    assert len(losses) == 3


def test_what_no_tensor_shows_is_a_segment_of_its_own(torch_card):
    kept = torch.ones(MIB, device="card")
    with torch_card.workspace(8 * MIB):
        snapshot = nbinspect.gpumem()
    found = snapshot.device("card:0")
    rest = found.allocated_bytes - found.tracked_bytes
    assert 8 * MIB <= rest < 8 * MIB + 4096
    (note,) = [note for note in found.notes if "no live tensor shows them" in note]
    assert note.startswith("8.00 MiB")
    assert "not visible from Python  8.00 MiB" in snapshot.text()
    assert "cuda" not in snapshot.text().lower()
    del kept


def test_devices_are_told_apart(torch_card):
    here = torch.ones(MIB, device="card:0")
    there = torch.ones(3 * MIB, device="card:1")
    found = nbinspect.gpumem()
    assert [one.device for one in found.devices] == ["card:0", "card:1", "cpu"]
    for device, size in (("card:0", 4 * MIB), ("card:1", 12 * MIB)):
        assert dict(found.device(device).by_kind)["FRAME"] == size
    alone = nbinspect.gpumem(device="card:1")
    assert [one.device for one in alone.devices] == ["card:1"]
    del here, there


@pytest.mark.parametrize("wrong", ["card:2", "card:-1", "cuda:0", "cuda", "gpu"])
def test_a_device_that_is_not_there_is_one_clear_line(torch_card, wrong):
    wanted = f"no device '{wrong}' here; this process has card:0, card:1, cpu"
    with pytest.raises(ValueError, match=wanted):
        nbinspect.gpumem(device=wrong)


LOOKS = {
    "gpumem": nbinspect.gpumem,
    "gauges": gauges,
    "text": lambda: nbinspect.gpumem().text(),
    "refchain": lambda: nbinspect.refchain(SUBJECT[0]),
    "memwatch of nothing": lambda: nbinspect.memwatch().__enter__().__exit__(None, None, None),
    "traceback_memory": nbinspect.traceback_memory,
}
SUBJECT: list[torch.Tensor] = []


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_looking_waits_for_nothing_allocates_nothing_and_resets_nothing(torch_card, look):
    weight = torch.ones(64, 64, device="card", requires_grad=True)
    SUBJECT[:] = [weight, (weight * 2).exp().sum()]  # held by a graph too
    torch.ones(2 * MIB, device="card:1")
    before = stats()
    torch_card.counted()
    look()
    waits, after = torch_card.counted(), stats()
    SUBJECT.clear()
    assert waits.reads == waits.from_host == waits.kernels == 0
    assert after == before


def test_cached_memory_is_named_with_the_line_that_frees_it(torch_card):
    block = torch.ones(64 * MIB, device="card:1")
    del block
    (waste,) = [one for one in nbinspect.gpumem().waste if "cached" in one.what]
    assert waste.device == "card:1"
    assert waste.size_bytes >= 256 * MIB
    exec(waste.mend, {})
    assert torch.accelerator.memory_reserved(1) == torch.accelerator.memory_allocated(1)


def test_live_bars_read_every_device(torch_card):
    kept = torch.ones(MIB, device="card:1")
    with torch_card.room(100 * MIB, index=1, others=7 * MIB):
        *cards, host = gauges()
    assert [one.label for one in cards] == ["card:0", "card:1"]
    sizes = {one.label: one.size_bytes for one in cards[1].segments}
    assert sizes["tensors"] == torch.accelerator.memory_allocated(1)
    assert sizes["contexts and other processes"] == 7 * MIB
    assert cards[1].total_bytes - sum(sizes.values()) == 100 * MIB
    assert host.label == "cpu"
    del kept


def test_a_cells_peak_lines_modules_and_what_stays(torch_card, trained):
    model, _ = trained
    with nbinspect.memwatch() as watch:
        gone = torch.ones(4 * MIB, device="card")
        del gone
        kept = torch.ones(MIB, device="card")
        model(torch.ones(64, 512, device="card")).sum().backward()
    report = watch.report
    waits = torch_card.counted()
    assert waits.reads == 0
    assert report.device == "card:0"
    assert report.added_peak_bytes == 16 * MIB
    assert [one.size_bytes for one in report.kept if one.owner.endswith("kept")] == [4 * MIB]
    lines = {one.where.text.strip(): one for one in report.lines if one.where is not None}
    assert lines['gone = torch.ones(4 * MIB, device="card")'].at_peak_bytes == 16 * MIB
    assert lines['kept = torch.ones(MIB, device="card")'].kept_bytes == 4 * MIB
    modules = {one.name: one.allocated_bytes for one in report.modules}
    assert modules["model.0"] == modules["model.1"] == 64 * 1024 * 4
    assert max(size for _, size in report.timeline) == report.peak_bytes
    del kept


def test_backward_passes_in_a_device_thread_belong_to_the_line_that_called_them(
    torch_card, trained
):
    model, _ = trained
    loss = model(torch.ones(64, 512, device="card")).sum()
    with nbinspect.memwatch() as watch:
        loss.backward()
    (line,) = watch.report.lines
    assert line.where is not None
    assert line.where.text.strip() == "loss.backward()"


def test_backward_through_two_devices_loses_no_allocation(torch_card):
    def halves(x):
        for _ in range(30):
            x = x.to("card:1") * 2 + (x * 3).sin().to("card:1")
            x = x.to("card:0")
        return x

    x = torch.ones(1024, device="card:0", requires_grad=True)
    loss = halves(x).sum() + halves(x.cos()).sum()
    before = stats()
    with nbinspect.memwatch() as watch:
        loss.backward()
    after = stats()
    for index in (0, 1):
        key = "allocation.all.allocated"
        expected = after[index][key] - before[index][key]
        seen = sum(one.n_allocations for one in watch.report.lines if one.device == f"card:{index}")
        assert expected
        # Each operation's result; sums of gradients are made between operations.
        assert 0.5 * expected <= seen <= expected
    assert {one.where.text.strip() for one in watch.report.lines} == {"loss.backward()"}


def test_the_peak_is_the_allocators_own_where_it_rose(torch_card):
    torch.accelerator.reset_peak_memory_stats(0)
    with nbinspect.memwatch() as watch:
        torch.ones(MIB, device="card") + 1
    assert watch.report.peak_bytes == torch.accelerator.max_memory_allocated(0)


def test_exact_counts_what_the_allocator_counts(torch_card):
    torch.accelerator.reset_peak_memory_stats(0)
    held = torch.accelerator.memory_allocated(0)
    with nbinspect.memwatch(exact=True) as watch:
        torch.ones(MIB, device="card").sort()
    assert watch.report.peak_bytes == torch.accelerator.max_memory_allocated(0)
    assert watch.report.peak_bytes - held >= 12 * MIB


@pytest.mark.parametrize("exact", [False, True])
def test_results_are_bit_identical(torch_card, exact):
    def train(watch):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 1)).to("card")
        with watch:
            model(torch.ones(8, 64, device="card")).sum().backward()
        return [p.grad.cpu() for p in model.parameters()], torch_card.get_rng_state("card")

    import contextlib

    plain, state = train(contextlib.nullcontext())
    seen, state_seen = train(nbinspect.memwatch(exact=exact))
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert torch.equal(state, state_seen)
