"""An open live view: what it has seen, where it shows it, and the cells it follows."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from nbinspect.blocks import Bar
from nbinspect.widgets import page
from nbinspect.widgets.holders_row import HolderBars, plain_bars
from nbinspect.widgets.sampler import SAMPLER, Sample, read
from nbinspect.widgets.still import LivePicture, Still

_HEARTBEAT_S = 1.0
_HISTORY_S, _HISTORY_STEP_S = 60.0, 0.5
_NOTABLE = 0.001


class Bars(Protocol):
    """The part of a live widget that a session writes to."""

    sample: dict[str, Any]
    history: list[Any]
    holders: dict[str, Any]
    still_class: str

    def send_state(self, key: list[str]) -> None:
        """Send traits again, changed or not."""

    def close(self) -> None:
        """Take the bars off the page."""


class LiveSession:
    """What one live view has seen since it was opened, and where it shows it.

    Args:
        hz: readings a second.
        bars: the widget in the page; None where no message from a thread reaches the page.

    Attributes:
        cell_id: the cell that shows it.
    """

    def __init__(self, hz: float, bars: Bars | None) -> None:
        self.cell_id = page.cell_id()
        self._bars = bars
        self._still = Still(f"nbinspect-still-{uuid.uuid4().hex}")
        self._period_s = 1 / hz
        self._opened_s = time.monotonic()
        self._lock = threading.Lock()
        self._peaks: dict[str, int] = {}
        self._last = self._sent = Sample(0.0, ())
        self._history: deque[list[Any]] = deque(maxlen=int(_HISTORY_S / _HISTORY_STEP_S))
        if bars is not None:
            bars.still_class = self._still.css_class
        self._take(read(), force=True)
        OPEN.append(self)
        _follow_cells()
        SAMPLER.add(self._take, hz)

    def show(self, bars_bundle: dict[str, Any] | None) -> None:
        """Put the bars, and the picture that outlives them, under the running cell."""
        if bars_bundle is not None:
            page.publish(bars_bundle, self._bars_id)
        self._still.show(self._picture())

    def cell_started(self) -> None:
        """Send the state again: a page that lost messages in the last cell is right again."""
        if self._bars is not None:
            self._bars.send_state(["sample", "holders"])

    def cell_ended(self) -> None:
        """Show the final values of a cell, and redraw the picture."""
        self._take(read(), force=True)
        if self._bars is not None:
            self._bars.history = list(self._history)
            self._bars.holders = HOLDERS.to_page()
            self._bars.send_state(["sample"])
        self._still.update(self._picture())

    def close(self) -> None:
        """Stop, and leave the last picture behind; may be called twice."""
        SAMPLER.remove(self._take)
        if self not in OPEN:
            return
        OPEN.remove(self)
        _follow_cells()
        bars, self._bars = self._bars, None
        if bars is not None:
            self._clear_bars()
            bars.close()
        self._still.update(self._picture(), final=True)

    def _take(self, sample: Sample, *, force: bool = False) -> None:
        """Note a sample; send it if it differs from what the page has, or as a heartbeat."""
        with self._lock:
            self._note(sample)
            due = force or sample.time_s - self._sent.time_s >= _HEARTBEAT_S
            if self._bars is not None and (due or notable(self._sent, sample)):
                self._bars.sample = self._message(sample)
                self._sent = sample

    def _note(self, sample: Sample) -> None:
        if sample.error:
            self._last = Sample(self._last.time_s, self._last.bars, sample.error)
            return
        self._last = sample
        for bar in sample.bars:
            if bar.segments:
                self._peaks[bar.label] = max(self._peaks.get(bar.label, 0), used_bytes(bar))
        if not self._history or sample.time_s - self._history[-1][0] >= _HISTORY_STEP_S:
            self._history.append([sample.time_s, [used_bytes(bar) for bar in sample.bars]])

    def _message(self, sample: Sample) -> dict[str, Any]:
        return {
            "t": sample.time_s,
            "at": time.strftime("%H:%M:%S"),
            "bars": plain_bars(self._last.bars),
            "peaks": [self._peaks.get(bar.label, 0) for bar in self._last.bars],
            "error": sample.error,
            "period_s": self._period_s,
        }

    def _picture(self) -> LivePicture:
        return LivePicture(
            bars=(*self._last.bars, *HOLDERS.bars),
            peaks=tuple(self._peaks.items()),
            taken_at=time.strftime("%H:%M:%S"),
            open_s=time.monotonic() - self._opened_s,
            error=self._last.error,
        )

    @property
    def _bars_id(self) -> str:
        return f"{self._still.css_class}-bars"

    def _clear_bars(self) -> None:
        """Leave nothing where the bars were: a saved notebook would wait for the widget."""
        page.publish({"text/plain": "", "text/html": ""}, self._bars_id, update=True)


def used_bytes(bar: Bar) -> int:
    """Give the part that the user's own program is behind: the first of the bar."""
    return bar.segments[0].size_bytes if bar.segments else 0


def notable(before: Sample, after: Sample) -> bool:
    """Say whether a page that shows `before` would look different with `after`."""
    if before.error != after.error or len(before.bars) != len(after.bars):
        return True
    return any(_bar_moved(*pair) for pair in zip(before.bars, after.bars, strict=True))


def _bar_moved(before: Bar, after: Bar) -> bool:
    if len(before.segments) != len(after.segments) or before.note != after.note:
        return True
    sizes = [
        (old.size_bytes, new.size_bytes)
        for old, new in zip(before.segments, after.segments, strict=True)
    ]
    least = _NOTABLE * max(1, sum(old for old, _ in sizes))
    return any(abs(new - old) > least for old, new in sizes)


OPEN: list[LiveSession] = []
HOLDERS = HolderBars()
_FOLLOWED: list[Any] = []


def close_live() -> int:
    """Close every live view; give how many were open."""
    sessions = list(OPEN)
    for session in sessions:
        session.close()
    return len(sessions)


def _follow_cells() -> None:
    """Be told of cells while a view is open, and only then."""
    shell = page.shell()
    if OPEN and not _FOLLOWED and shell is not None:
        shell.events.register("pre_run_cell", _cell_started)
        shell.events.register("post_run_cell", _cell_ended)
        _FOLLOWED.append(shell.events)
    elif not OPEN and _FOLLOWED:
        events = _FOLLOWED.pop()
        with contextlib.suppress(ValueError):  # the user reset the events
            events.unregister("pre_run_cell", _cell_started)
            events.unregister("post_run_cell", _cell_ended)


def _cell_started(_info: Any) -> None:
    for session in tuple(OPEN):
        with _never_break_the_cell():
            session.cell_started()


def _cell_ended(_result: Any) -> None:
    HOLDERS.refresh()
    for session in tuple(OPEN):
        with _never_break_the_cell():
            session.cell_ended()


@contextlib.contextmanager
def _never_break_the_cell() -> Iterator[None]:
    """Close the views if showing them fails, instead of failing after every cell."""
    try:
        yield
    except Exception as error:
        sys.stderr.write(f"nbinspect: live memory bars closed: {error!r}\n")
        close_live()
