import gc
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint
from training import MODELS, Training

import nbinspect
from nbinspect.memory import MemoryReport
from nbinspect.memory.tracker import Tracker
from nbinspect.ops import OpStream

KIB = 1024


def watched(body, **options) -> MemoryReport:
    with nbinspect.memwatch(**options) as watch:
        body()
    return watch.report


def profiler_peak(body) -> int:
    """Add up the profiler's own allocator events; the independent figure to agree with."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        body()
    events = [one for one in recorded.profiler.kineto_results.events() if one.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("name", ["mlp", "transformer"])
@pytest.mark.parametrize("exact", [False, True])
def test_added_peak_agrees_with_the_profiler(name, exact):
    expected = profiler_peak(Training(name).step)
    report = watched(Training(name).step, exact=exact)
    assert report.added_peak_bytes == pytest.approx(expected, rel=0.01)
    assert report.source == ("profiler" if exact else "op stream")


def test_exact_agrees_with_the_profiler_on_a_convolution():
    expected = profiler_peak(Training("convnet").step)
    assert watched(Training("convnet").step, exact=True).added_peak_bytes == pytest.approx(
        expected, rel=0.01
    )


def test_without_exact_a_report_says_what_it_does_not_count():
    report = watched(Training("convnet").step)
    assert any("kernels allocate inside" in note for note in report.notes)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("exact", [False, True])
def test_results_are_bit_identical(name, exact):
    plain, seen = Training(name), Training(name)
    torch.manual_seed(7)
    losses = [plain.step() for _ in range(3)]
    expected = plain.state()
    torch.manual_seed(7)
    with nbinspect.memwatch(exact=exact):
        got = [seen.step() for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(losses, got, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(expected, seen.state(), strict=True))


def test_peak_is_absolute_and_added_peak_is_above_before():
    old = torch.ones(100 * KIB)
    report = watched(lambda: torch.ones(50 * KIB).sum())
    before = report.before.device("cpu").tracked_bytes
    assert before >= old.untyped_storage().nbytes()
    assert report.added_peak_bytes == 200 * KIB + 4
    assert report.peak_bytes == before + report.added_peak_bytes
    assert max(size for _, size in report.timeline) == report.peak_bytes
    assert report.timeline[-1][1] == report.after.device("cpu").tracked_bytes


def test_memory_that_was_there_before_and_goes_counts_down():
    kept = [torch.ones(100 * KIB)]

    def body():
        kept.clear()
        kept.append(torch.ones(50 * KIB))

    report = watched(body)
    assert report.added_peak_bytes == 0
    assert min(size for _, size in report.timeline) <= report.peak_bytes - 400 * KIB
    peak = report.peaks[-1]
    assert peak.after_bytes - peak.before_bytes == -200 * KIB


def test_what_a_graph_saved_and_a_list_let_go_counts_down():
    weight = torch.ones(64, 64, requires_grad=True)
    losses = [(weight * weight).exp().sum() for _ in range(10)]
    report = watched(losses.clear)
    assert report.peaks[-1].after_bytes < report.peaks[-1].before_bytes - 10 * 64 * 64 * 4
    assert min(size for _, size in report.timeline) == report.peaks[-1].after_bytes


def test_lines_name_the_users_own_code_with_its_bytes():
    def body():
        first = torch.ones(10 * KIB)  # line A
        second = nn.functional.relu(first)  # line B
        del first
        return second

    report = watched(body)
    start = body.__code__.co_firstlineno
    found = {line.where.lineno - start: line for line in report.lines}
    assert found[1].allocated_bytes == found[2].allocated_bytes == 40 * KIB
    assert found[1].n_allocations == 1
    assert "line A" in found[1].where.text
    assert found[1].where.file.endswith("test_memwatch.py")
    assert (found[2].at_peak_bytes, found[2].kept_bytes) == (40 * KIB, 0)


def test_backward_and_optimizer_fold_into_the_line_that_calls_them():
    training = Training("mlp")
    report = watched(training.step)
    texts = {line.where.text for line in report.lines if line.where}
    assert "loss.backward()" in texts
    assert "self.optimizer.step()" in texts
    assert all(line.where.file.endswith("training.py") for line in report.lines)


def test_modules_have_their_names_and_their_activations():
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(8, 256)), "head": nn.Linear(256, 4)})

    def body():
        inputs = torch.ones(16, 8)
        return model["head"](model["encoder"](inputs))

    report = watched(body)
    sizes = {module.name: module.allocated_bytes for module in report.modules}
    assert sizes["Sequential.0"] == 16 * 256 * 4
    assert sizes["Linear"] == 16 * 4 * 4  # no variable of its own

    whole = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 4))

    def forward():
        return whole(torch.ones(16, 8))

    names = {(one.name, one.type_name, one.n_allocations) for one in watched(forward).modules}
    expected = {("whole.0", "Linear", 1), ("whole.1", "ReLU", 1), ("whole.2", "Linear", 1)}
    assert names == expected


def test_what_stays_is_named_with_its_holder():
    cache = {}

    def body():
        cache["k"] = torch.ones(30 * KIB)

    report = watched(body)
    assert [one.size_bytes for one in report.kept] == [120 * KIB]
    assert "cache['k']" in report.kept[0].owner
    assert report.lines[0].kept_bytes == 120 * KIB


def test_what_stays_is_what_is_new_and_not_what_changed_its_name():
    loss = torch.ones(KIB)
    losses, state = [loss], {"gradient": torch.ones(KIB)}

    def body():
        nonlocal loss
        loss = torch.ones(KIB)  # the old one is `losses[0]` from now on
        state["gradient"] = torch.ones(KIB)  # takes the place of one that is gone
        state["grown"] = torch.ones(KIB)

    report = watched(body)
    held = {one.owner.rpartition("variable ")[2]: one.size_bytes for one in report.kept}
    assert sorted(held.values()) == [4 * KIB, 4 * KIB]
    assert not any("losses" in owner or "gradient" in owner for owner in held)
    assert losses


def test_a_tensor_from_numpy_counts_from_its_first_use():
    import numpy as np

    kept = []

    def body():
        kept.append(torch.from_numpy(np.ones(KIB)))
        kept[0].sum()

    assert watched(body).added_peak_bytes >= 8 * KIB


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_goes_through_and_is_named(error):
    def body():
        torch.ones(KIB)
        raise error("the user's own")

    watch = nbinspect.memwatch()
    with pytest.raises(error), watch:
        body()
    assert watch.report.error == error.__name__
    assert watch.report.added_peak_bytes == 4 * KIB
    assert _get_current_dispatch_mode_stack() == []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers on Windows")
def test_an_interrupt_is_never_swallowed():
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)

    def train():
        signal.setitimer(signal.ITIMER_REAL, 0.003)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            torch.ones(10)  # each is freed as the next one comes

    try:
        for _ in range(100):
            with pytest.raises(KeyboardInterrupt), OpStream(Tracker()):
                train()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_report_comes_after_the_block_only():
    watch = nbinspect.memwatch()
    with watch, pytest.raises(RuntimeError, match="not ended"):
        watch.report


def test_watches_nest():
    with nbinspect.memwatch() as outer:
        torch.ones(KIB)
        with nbinspect.memwatch() as inner:
            torch.ones(2 * KIB)
    assert inner.report.added_peak_bytes == 8 * KIB
    assert outer.report.added_peak_bytes == 8 * KIB


def test_a_mode_that_the_cell_leaves_behind_stays_and_ours_goes():
    class Users(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    users = Users()
    with nbinspect.memwatch():
        users.__enter__()
    assert _get_current_dispatch_mode_stack() == [users]
    users.__exit__(None, None, None)


def test_nothing_of_the_users_is_kept_alive():
    probes = []

    def body():
        model = nn.Linear(16, 16)
        out = model(torch.ones(2, 16))
        probes.extend(weakref.ref(one) for one in (model, out, model.weight))

    gc.collect()
    gc.disable()
    try:
        report = watched(body)
        assert [probe() for probe in probes] == [None, None, None]
    finally:
        gc.enable()
    assert report.lines


def test_checkpointed_forwards_run_as_often_as_before():
    calls = []

    class Block(nn.Module):
        def forward(self, x):
            calls.append(1)
            return (x * x).exp()

    def body():
        x = torch.ones(8, requires_grad=True)
        checkpoint(Block(), x, use_reentrant=False).sum().backward()

    body()
    plain = len(calls)
    calls.clear()
    watched(body)
    assert len(calls) == plain


def test_other_threads_do_not_disturb_the_modules_path():
    stop = threading.Event()
    other = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def work():
        while not stop.is_set():
            other(torch.ones(1, 4))

    thread = threading.Thread(target=work)
    thread.start()
    mine = nn.Linear(4, 4)
    try:
        report = watched(lambda: [mine(torch.ones(1, 4)) for _ in range(200)])
    finally:
        stop.set()
        thread.join()
    assert {one.name for one in report.modules} == {"mine"}


def test_a_running_profiler_is_left_alone():
    with profile(activities=[ProfilerActivity.CPU]) as users:
        report = watched(lambda: torch.ones(KIB).sum(), exact=True)
    assert report.added_peak_bytes >= 4 * KIB
    assert any(one.key == "aten::sum" for one in users.key_averages())
    assert report.source == "op stream"
    assert any("log" in note for note in report.notes)


COMPILED = """
import torch, nbinspect
compiled = torch.compile(lambda x: (x * 2).relu().sum(), backend="aot_eager")
x = torch.randn(100)
expected = compiled(x)
frames = torch._dynamo.utils.counters["frames"]["total"]
with nbinspect.memwatch() as watch:
    assert torch.equal(compiled(x), expected)
assert torch._dynamo.utils.counters["frames"]["total"] == frames
assert any("compiled" in note for note in watch.report.notes), watch.report.notes
fresh = torch.compile(lambda x: x.exp() + 1, backend="aot_eager")
with nbinspect.memwatch() as watch:
    kept = fresh(x)
assert torch._dynamo.utils.counters["frames"]["ok"] == frames + 1, "it ran eagerly"
assert watch.report.added_peak_bytes >= 400
"""


def test_compiled_functions_run_as_compiled():
    # In a process of its own: compiling leaves much behind in torch.
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_cell_is_too_short_and_none_too_long():
    assert watched(lambda: None).added_peak_bytes == 0
    report = watched(lambda: [torch.ones(8) for _ in range(20_000)])
    assert len(report.timeline) <= 1502
    assert report.peak_bytes == max(size for _, size in report.timeline)


def test_it_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched(lambda: (torch.ones(4, requires_grad=True) * 2).sum().backward())


@pytest.mark.parametrize("top", [0, -1])
def test_a_bad_option_is_told_in_one_line(top):
    with pytest.raises(ValueError, match=f"top must be at least 1, not {top}"):
        nbinspect.memwatch(top=top)


def test_duration_is_that_of_the_cell():
    assert 0.05 <= watched(lambda: time.sleep(0.05)).duration_s < 1
