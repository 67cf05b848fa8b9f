"""What only a CUDA device can show; the rest of memory inspection is tested on the CPU."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import nbinspect
from nbinspect.memory.gauges import gauges

MIB = 1 << 20


@pytest.fixture
def cuda():
    device = torch.device("cuda:0")
    torch.ones(1, device=device)
    return device


@pytest.mark.keeps_tensors(reason="cuBLAS keeps its workspace")
def test_holders_add_up_to_what_torch_counts(cuda):
    model = nn.Linear(1024, 1024, device=cuda)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(8, 1024, device=cuda)).sum().backward()
    optimizer.step()
    found = nbinspect.gpumem().device("cuda")
    kinds = dict(found.by_kind)
    parameter_bytes = sum(p.untyped_storage().nbytes() for p in model.parameters())
    assert kinds["PARAMETER"] == kinds["GRADIENT"] == parameter_bytes
    assert kinds["OPTIMIZER_STATE"] >= 2 * parameter_bytes
    assert found.allocated_bytes == torch.cuda.memory_allocated(cuda)
    assert found.reserved_bytes == torch.cuda.memory_reserved(cuda)
    assert found.tracked_bytes <= found.allocated_bytes
    assert isinstance(found.total_bytes, int)


def test_looking_changes_no_counter(cuda):
    kept = torch.ones(MIB, device=cuda)
    before = torch.cuda.memory_stats(cuda)
    nbinspect.gpumem()
    assert torch.cuda.memory_stats(cuda) == before
    del kept


def test_peak_is_the_allocators_own(cuda):
    torch.cuda.reset_peak_memory_stats(cuda)
    with nbinspect.memwatch() as watch:
        a = torch.ones(MIB, device=cuda)
        b = a + 1
        del a, b
    report = watch.report
    assert report.device == "cuda:0"
    assert report.peak_bytes == torch.cuda.max_memory_allocated(cuda)
    assert report.added_peak_bytes == 8 * MIB
    assert report.source == "allocator history"


def test_a_peak_below_an_older_one_is_found_too(cuda):
    torch.ones(16 * MIB, device=cuda)
    with nbinspect.memwatch() as watch:
        torch.ones(MIB, device=cuda)
    assert watch.report.added_peak_bytes == 4 * MIB


def test_a_history_that_the_user_records_goes_on(cuda):
    torch.cuda.memory._record_memory_history(max_entries=1000)
    try:
        with nbinspect.memwatch() as watch:
            torch.ones(MIB, device=cuda)
        assert torch._C._cuda_isHistoryEnabled()
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert watch.report.added_peak_bytes == 4 * MIB


@pytest.mark.parametrize(
    "kept",
    [("all", {"max_entries": 3}), ("state", {}), ("all", {"skip_actions": ["free_requested"]})],
    ids=["small ring", "state", "no frees"],
)
def test_a_history_that_lacks_calls_is_not_believed(cuda, kept):
    torch.cuda.memory._record_memory_history(kept[0], **kept[1])
    try:
        with nbinspect.memwatch() as watch:
            for _ in range(9):
                torch.ones(MIB, device=cuda)
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert watch.report.added_peak_bytes == 4 * MIB
    assert watch.report.source == "op stream"
    assert any("has not room" in note for note in watch.report.notes)


def test_what_is_freed_while_the_log_is_read_is_no_call_of_the_cell(cuda, monkeypatch):
    kept, read = [torch.ones(MIB, device=cuda)], torch.cuda.memory._snapshot

    def read_and_collect():
        found = read()
        kept.clear()
        return found

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", read_and_collect)
    with nbinspect.memwatch() as watch:
        torch.ones(MIB, device=cuda)
    assert watch.report.source == "allocator history"


def test_nobody_waits_for_the_device(cuda):
    model = nn.Linear(64, 64, device=cuda)
    rows = torch.ones(8, 64, device=cuda)
    torch.cuda.set_sync_debug_mode("error")
    try:
        nbinspect.gpumem()
        gauges()
        with nbinspect.memwatch():
            model(rows).sum().backward()
        nbinspect.refchain(rows)
        nbinspect.autograd(model(rows))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_each_device_has_its_own_figures_and_curve():
    kept = []
    with nbinspect.memwatch() as watch:
        kept.append(torch.ones(MIB, device="cuda:0"))
        kept.append(torch.ones(2 * MIB, device="cuda:1"))
    report = watch.report
    added = {one.device: one.peak_bytes - one.before_bytes for one in report.peaks}
    assert (added["cuda:0"], added["cuda:1"]) == (4 * MIB, 8 * MIB)
    assert report.device == "cuda:1"
    assert {one.device for one in report.lines} == {"cuda:0", "cuda:1"}
    titles = [one.title for one in report.view() if hasattr(one, "times_s")]
    assert [one.partition(":")[0] for one in titles] == ["cuda", "cuda"]  # the CPU was left alone
    (table,) = [one for one in report.view() if getattr(one, "title", "").startswith("Lines")]
    assert [column.title for column in table.columns][:2] == ["line", "device"]


OTHER_ALLOCATOR = """
import torch, nbinspect
kept = torch.ones(32 << 20, device="cuda")
with nbinspect.memwatch() as watch:
    torch.ones(1 << 20, device="cuda")
assert watch.report.added_peak_bytes == 4 << 20, watch.report.added_peak_bytes
found = nbinspect.gpumem().device("cuda")
assert found.tracked_bytes == 128 << 20, found
del kept
print(nbinspect.gpumem())
from nbinspect.snapshots.answer import record_snapshot
try:
    record_snapshot()
except ValueError as error:
    assert "takes no snapshots" in str(error)
else:
    raise AssertionError("a snapshot of an allocator that takes none")
"""


def test_the_drivers_own_allocator_keeps_no_log_and_is_no_error(cuda):
    done = subprocess.run(
        [sys.executable, "-c", OTHER_ALLOCATOR],
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_backward_passes_belong_to_the_line_that_called_them(cuda):
    loss = (torch.ones(MIB, device=cuda, requires_grad=True) * 2).sum()
    with nbinspect.memwatch() as watch:
        loss.backward()
    (line,) = watch.report.lines
    assert line.where.text.strip() == "loss.backward()"


@pytest.mark.parametrize("options", [{}, {"light": True}, {"sync": True}], ids=str)
def test_nan_in_a_backward_pass_is_named(cuda, options):
    x = torch.zeros(4, device=cuda, requires_grad=True)
    with nbinspect.nanwatch(stop=False, **options) as watch:
        x.sqrt().sum().backward()
    (found,) = watch.report.findings
    assert (found.node, found.phase) == ("SqrtBackward0", "backward")


def test_results_are_bit_identical(cuda):
    def train(watch):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 1)).to(cuda)
        if watch is None:
            model(torch.ones(8, 64, device=cuda)).sum().backward()
        else:
            with watch:
                model(torch.ones(8, 64, device=cuda)).sum().backward()
        return [p.grad.cpu() for p in model.parameters()], torch.cuda.get_rng_state(cuda)

    (plain, rng), (seen, rng_seen) = train(None), train(nbinspect.memwatch())
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert torch.equal(rng, rng_seen)


def test_cached_memory_is_named_with_the_line_that_frees_it(cuda):
    block = torch.ones(64 * MIB, device=cuda)
    del block
    waste = [one for one in nbinspect.gpumem().waste if "empty_cache" in one.mend]
    assert waste
    assert waste[0].size_bytes >= 64 * MIB
    torch.cuda.empty_cache()


UNOPENED = """
import torch, nbinspect
found = nbinspect.gpumem()
assert not torch.cuda.is_initialized(), "looking opened the device"
assert found.device("cuda").allocated_bytes == 0
assert found.device("cuda").tracked_bytes == 0
from nbinspect.memory.gauges import gauges
gauges()
assert not torch.cuda.is_initialized(), "a gauge opened the device"
"""


def test_a_device_that_is_not_in_use_is_not_opened():
    done = subprocess.run(
        [sys.executable, "-c", UNOPENED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
