"""Live bars without a page: their thread, their rates, and what they leave behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref

import comm
import pytest

from nbinspect.blocks import Bar, Segment
from nbinspect.memory import gauges
from nbinspect.widgets import close_live, open_live, session
from nbinspect.widgets.live import LiveMemory
from nbinspect.widgets.sampler import MAX_HZ, MIN_HZ, Sample, Sampler, checked_hz
from nbinspect.widgets.session import notable


@pytest.fixture(autouse=True)
def _close():
    yield
    close_live()


def bar(*sizes: int, total: int | None = 1000) -> Bar:
    parts = tuple(Segment(f"part {n}", size, "PROCESS") for n, size in enumerate(sizes))
    return Bar("cpu", parts, total, "the limit")


def sampling_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "nbinspect-live"]


def wait_for(condition, timeout_s: float = 5.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


@pytest.mark.parametrize("hz", [0, -1, 0.1, 20.1, float("nan"), float("inf"), "fast", None, []])
def test_a_bad_rate_is_refused_in_one_line(hz):
    with pytest.raises(ValueError, match=r"^hz must be a number from 0.2 to 20, not [^\n]+$"):
        LiveMemory(hz=hz)
    with pytest.raises(ValueError, match="hz must be"):
        open_live(hz=hz)
    assert not sampling_threads()
    assert session.OPEN == []


def test_the_ends_of_the_range_are_allowed():
    assert [checked_hz(hz) for hz in (MIN_HZ, 1, MAX_HZ)] == [0.2, 1.0, 20.0]


def test_bars_hold_what_the_gauges_say_and_follow_them(monkeypatch):
    sizes = iter(range(100, 100_000, 100))
    monkeypatch.setattr(gauges, "gauges", lambda: (bar(next(sizes), 7),))
    live = LiveMemory(hz=20)
    first = live.sample
    assert first["bars"][0]["segments"][0]["size_bytes"] == 100
    assert first["bars"][0]["total_bytes"] == 1000
    assert first["period_s"] == 0.05
    wait_for(lambda: live.sample["bars"][0]["segments"][0]["size_bytes"] >= 300)
    assert live.sample["peaks"] == [live.sample["bars"][0]["segments"][0]["size_bytes"]]


def test_the_peak_stays_when_memory_falls(monkeypatch):
    sizes = iter([100, 900, *[200] * 10_000])
    monkeypatch.setattr(gauges, "gauges", lambda: (bar(next(sizes)),))
    live = LiveMemory(hz=20)
    wait_for(lambda: live.sample["bars"][0]["segments"][0]["size_bytes"] == 200)
    assert live.sample["peaks"] == [900]


def test_nothing_is_sent_while_nothing_changes_but_a_heartbeat(monkeypatch):
    reads = []

    def still() -> tuple[Bar, ...]:
        reads.append(1)
        return (bar(500),)

    monkeypatch.setattr(gauges, "gauges", still)
    live = LiveMemory(hz=20)
    sent = []
    live.observe(sent.append, "sample")
    time.sleep(1.5)
    close_live()
    assert len(reads) > 10
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (bar(1_000_000), bar(1_000_999), False),
        (bar(1_000_000), bar(1_002_000), True),
        (bar(10**9, 5), bar(10**9, 10**6 - 5), False),
        (bar(0), bar(2), True),
        (bar(1), bar(1, 0), True),
    ],
)
def test_a_change_of_a_thousandth_is_worth_a_message(before, after, expected):
    assert notable(Sample(0, (before,)), Sample(1, (after,))) is expected


def test_a_reading_lost_or_found_is_worth_a_message():
    assert notable(Sample(0, (bar(1),)), Sample(1, (), "gone"))
    assert notable(Sample(0, (), "gone"), Sample(1, (bar(1),)))
    assert not notable(Sample(0, (), "gone"), Sample(1, (), "gone"))


def test_a_broken_gauge_is_shown_as_its_reason_and_may_recover(monkeypatch):
    broken = threading.Event()

    def fragile() -> tuple[Bar, ...]:
        if broken.is_set():
            raise RuntimeError("driver lost")
        return (bar(500),)

    monkeypatch.setattr(gauges, "gauges", fragile)
    live = LiveMemory(hz=20)
    broken.set()
    wait_for(lambda: live.sample["error"] == "RuntimeError: driver lost")
    assert live.sample["bars"][0]["segments"][0]["size_bytes"] == 500, "the last reading stays"
    assert len(sampling_threads()) == 1
    broken.clear()
    wait_for(lambda: live.sample["error"] == "")


def test_a_gauge_broken_from_the_start_opens_all_the_same(monkeypatch):
    def broken() -> tuple[Bar, ...]:
        raise OSError("no counters")

    monkeypatch.setattr(gauges, "gauges", broken)
    live = LiveMemory()
    assert live.sample["error"] == "OSError: no counters"
    assert live.sample["bars"] == []


def test_one_thread_serves_all_views_and_ends_with_the_last():
    views = [LiveMemory(hz=hz) for hz in (1, 20, 5)]
    assert len(sampling_threads()) == 1
    assert sampling_threads()[0].daemon
    views[1].close()
    views[0].close()
    assert len(sampling_threads()) == 1
    views[2].close()
    assert not sampling_threads()


def test_closing_twice_and_in_any_way_is_fine():
    live = LiveMemory()
    live.close()
    live.close()
    assert close_live() == 0
    LiveMemory()
    LiveMemory()
    assert close_live() == 2
    assert close_live() == 0


def test_the_close_button_of_the_page_closes():
    live = LiveMemory()
    live._handle_custom_msg({"kind": "something else"}, [])
    assert live.comm is not None
    live._handle_custom_msg({"kind": "close"}, [])
    assert live.comm is None
    assert session.OPEN == []
    assert not sampling_threads()


def test_many_open_and_close_cycles_leave_no_thread_no_comm_and_no_view():
    comms = len(comm.get_comm_manager().comms)
    gone = []
    for _ in range(50):
        live = LiveMemory(hz=20)
        gone.append(weakref.ref(live))
        live.close()
    del live
    assert not sampling_threads()
    assert len(comm.get_comm_manager().comms) == comms
    gc.collect()
    assert [ref for ref in gone if ref() is not None] == []


def test_no_tensor_is_kept_alive():
    import torch

    tensor = torch.ones(1000)
    alive = weakref.ref(tensor)
    live = LiveMemory(hz=20)
    time.sleep(0.2)
    del tensor
    assert alive() is None
    live.close()


def test_a_listener_that_raises_neither_ends_the_thread_nor_starves_the_others():
    sampler, heard = Sampler(), []

    def broken(_sample: Sample) -> None:
        raise RuntimeError("page gone")

    sampler.add(broken, 20)
    sampler.add(heard.append, 20)
    wait_for(lambda: len(heard) > 3)
    sampler.remove(broken)
    sampler.remove(heard.append)
    assert not sampling_threads()


def test_a_slow_gauge_is_read_less_often(monkeypatch):
    reads = []

    def slow() -> tuple[Bar, ...]:
        reads.append(1)
        end = time.thread_time() + 0.03
        while time.thread_time() < end:
            pass
        return (bar(1),)

    monkeypatch.setattr(gauges, "gauges", slow)
    LiveMemory(hz=20)
    reads.clear()
    time.sleep(2.0)
    close_live()
    assert 1 <= len(reads) <= 10, "40 would be the rate asked for"


def test_sampling_takes_under_one_percent_of_a_core():
    live = LiveMemory(hz=5)
    (thread,) = sampling_threads()
    clock = time.pthread_getcpuclockid(thread.ident)
    time.sleep(0.5)
    before = time.clock_gettime(clock)
    time.sleep(2.0)
    used = time.clock_gettime(clock) - before
    live.close()
    print(f"{used / 2:.3%} of a core")
    assert used / 2 < 0.01


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0"])
def test_the_process_ends_at_once_with_bars_open(ending):
    code = (
        "from nbinspect.widgets.live import LiveMemory; import time\n"
        "live = LiveMemory(hz=0.2); print(time.time(), flush=True)\n" + ending
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert time.time() - float(done.stdout) < 2.0
    assert done.returncode == {"": 0, "1 / 0": 1}.get(ending, 3)


def test_a_terminal_gets_one_picture_and_no_thread(capsys):
    open_live()
    shown = capsys.readouterr().out
    assert "Live bars need a notebook" in shown
    assert "this process" in shown
    assert not sampling_threads()
