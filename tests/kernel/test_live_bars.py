"""Live bars in a real kernel: what is sent while cells run, at their end and at the close."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kerneldriver import Kernel, Reply

WIDGET = "application/vnd.jupyter.widget-view+json"
THREADS = "[t.name for t in __import__('threading').enumerate() if 'nbinspect' in t.name]"
EVENTS = "sum(len(calls) for calls in get_ipython().events.callbacks.values())"


class Listening(Kernel):
    """Keeps every message of the cell that ran last, comms and display updates included."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[tuple[str, dict[str, Any]]] = []

    def run(self, code: str, **options: Any) -> Reply:
        self.messages.clear()
        return super().run(code, **options)

    def _collect(self, reply: Reply, kind: str, content: dict[str, Any]) -> None:
        self.messages.append((kind, content))
        super()._collect(reply, kind, content)

    def contents(self, kind: str) -> list[dict[str, Any]]:
        return [content for each, content in self.messages if each == kind]

    def samples(self) -> list[dict[str, Any]]:
        states = [content["data"].get("state", {}) for content in self.contents("comm_msg")]
        return [state["sample"] for state in states if "sample" in state]


@pytest.fixture(scope="module")
def kernel() -> Iterator[Listening]:
    running = Listening()
    running.ok("import time, sys; from nbinspect.widgets import open_live, close_live")
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _close(kernel: Listening) -> Iterator[None]:
    yield
    kernel.run("close_live()")


def test_bars_and_a_picture_of_its_own_are_shown(kernel):
    kernel.ok("open_live()")
    bars, still = kernel.contents("display_data")
    assert WIDGET in bars["data"]
    assert "object at 0x" not in bars["data"]["text/plain"]
    assert set(still["data"]) == {"text/plain", "text/html"}
    assert "this process" in still["data"]["text/plain"]
    (drawn,) = kernel.contents("update_display_data")
    assert drawn["transient"] == still["transient"]
    assert set(drawn["data"]) == {"text/plain", "text/html", "image/png"}


def test_the_open_call_returns_nothing_to_show(kernel):
    assert kernel.ok("open_live()").texts("result") == []


def test_samples_are_sent_while_a_cell_runs_and_at_its_end(kernel):
    kernel.ok("open_live(hz=20)")
    kernel.ok(
        "held = []\nfor _ in range(8):\n    held.append(bytearray(20_000_000)); time.sleep(.1)"
    )
    sizes = [sample["bars"][-1]["segments"][0]["size_bytes"] for sample in kernel.samples()]
    assert sizes[-1] - sizes[0] > 100_000_000
    assert len(sizes) > 5
    kernel.ok("held = held[:0]; last = bytearray(200_000_000)")
    assert len(kernel.samples()) >= 2, "one at the start, one at the end, however short the cell"


def test_pictures_are_not_redrawn_after_every_quick_cell(kernel):
    kernel.ok("open_live()")
    n_drawn = 0
    for _ in range(5):
        kernel.ok("last = bytearray(50_000_000)")
        n_drawn += len(kernel.contents("update_display_data"))
    assert n_drawn == 0


def test_an_interrupt_ends_the_cell_and_not_the_bars(kernel):
    kernel.ok("open_live(hz=20)")
    timer = threading.Timer(1.0, kernel.interrupt)
    timer.start()
    reply = kernel.run("time.sleep(30)")
    timer.join()
    assert (reply.status, reply.error.split(":")[0]) == ("error", "KeyboardInterrupt")
    assert kernel.value(THREADS) == "['nbinspect-live']"
    kernel.ok("held = [bytearray(10_000_000) for _ in range(10) if not time.sleep(.05)]")
    assert len(kernel.samples()) > 3


def test_a_failing_cell_fails_as_it_would(kernel):
    kernel.ok("open_live()")
    reply = kernel.run("1 / 0")
    assert reply.status == "error"
    assert reply.error == "ZeroDivisionError: division by zero"
    assert reply.text("stderr") == ""


def test_a_broken_gauge_breaks_no_cell(kernel):
    kernel.ok("open_live(hz=20); from nbinspect.memory import gauges; whole = gauges.gauges")
    try:
        reply = kernel.ok("gauges.gauges = lambda: 1 / 0; time.sleep(.3)")
        assert reply.text("stderr") == ""
        assert kernel.samples()[-1]["error"] == "ZeroDivisionError: division by zero"
        assert kernel.ok("1 + 1").text("result") == "2"
    finally:
        kernel.ok("gauges.gauges = whole")


def test_closing_leaves_a_picture_and_nothing_else(kernel):
    before = kernel.value(EVENTS)
    kernel.ok("open_live()")
    bars, still = kernel.contents("display_data")
    assert kernel.ok("close_live()").text("result") == "1"
    emptied, last = kernel.contents("update_display_data")
    assert emptied["transient"] == bars["transient"]
    assert emptied["data"] == {"text/plain": "", "text/html": ""}
    assert last["transient"] == still["transient"]
    assert set(last["data"]) == {"text/plain", "text/html", "image/png"}
    assert kernel.value(THREADS) == "[]"
    assert kernel.value(EVENTS) == before


def test_very_many_views_are_not_all_kept(kernel):
    kernel.ok("for _ in range(12): open_live()")
    assert kernel.ok("close_live()").text("result") == "8"


def test_a_bad_rate_says_so_and_opens_nothing(kernel):
    reply = kernel.run("open_live(hz=100)")
    assert reply.error == "ValueError: hz must be a number from 0.2 to 20, not 100"
    assert kernel.value(THREADS) == "[]"


def test_colab_gets_display_updates_and_no_widget(kernel):
    kernel.ok("import types; sys.modules['google.colab'] = types.ModuleType('google.colab')")
    try:
        kernel.ok("open_live()")
        (still,) = kernel.contents("display_data")
        assert WIDGET not in still["data"]
        assert kernel.contents("comm_open") == []
        kernel.ok("more = bytearray(150_000_000); time.sleep(5.2)")  # drawing has to rest
        (update,) = kernel.contents("update_display_data")
        assert update["transient"] == still["transient"]
        assert kernel.contents("comm_msg") == []
    finally:
        kernel.ok("del sys.modules['google.colab']")


def test_holders_follow_at_the_end_of_cells_and_never_from_the_thread(kernel):
    kernel.ok("import torch; held = torch.ones(1000, 1000)")
    kernel.ok(
        "import nbinspect, threading; real = nbinspect.gpumem; callers = []\n"
        "def counted(**options):\n"
        "    callers.append(threading.current_thread().name); return real(**options)\n"
        "nbinspect.gpumem = counted\n"
        "open_live(hz=20)"
    )
    try:
        kernel.ok("time.sleep(6)")
        states = [content["data"].get("state", {}) for content in kernel.contents("comm_msg")]
        holders = [state["holders"] for state in states if "holders" in state][-1]
        assert holders["error"] == ""
        (cpu,) = holders["bars"]
        sizes = {part["hue"]: part["size_bytes"] for part in cpu["segments"]}
        assert sizes["VARIABLE"] >= 4_000_000
        assert set(eval(kernel.value("callers"))) == {"MainThread"}
    finally:
        kernel.ok("nbinspect.gpumem = real; del held")
