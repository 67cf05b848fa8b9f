"""The picture beside a live view: what a saved, untrusted or exported notebook shows."""

from __future__ import annotations

import base64
import dataclasses
import threading
import time
from dataclasses import dataclass
from typing import Any

from nbinspect.blocks import Bar, Size, Span, Text, View
from nbinspect.records import Record
from nbinspect.render.format import bytes_text
from nbinspect.widgets import page

# Bars that no kernel fills any more: the front end would say "Loading widget..." in their place.
_UNLOADED = (
    ".jp-OutputArea-child:has(> .jp-OutputArea-output.lm-Panel):not(:has(.nbl-live))"
    ":has(+ .jp-OutputArea-child .{})"
)
_PNG_SHARE, _MAX_REST_S = 0.05, 5.0


@dataclass(frozen=True, slots=True)
class LivePicture(Record):
    """The last reading of a live view.

    Attributes:
        bars: one bar per device, then one per device by holder.
        peaks: device and the most its first part held since the view was opened.
        taken_at: local time of the reading, e.g. ``14:03:22``.
        open_s: how long the view had been open.
        error: why there was no reading, "" if there was one.
    """

    bars: tuple[Bar, ...]
    peaks: tuple[tuple[str, int], ...]
    taken_at: str
    open_s: float
    error: str = ""

    def view(self) -> View:
        """Headline, bars, and what the peaks mean."""
        headline = Text((f"Memory at {self.taken_at}",), "headline")
        if self.error:
            headline = Text((f"No memory reading at {self.taken_at}: {self.error}",), "headline")
        note = (Text(self._peak_spans(), "note"),) if self.peaks else ()
        return (headline, *map(_shown, self.bars), *note)

    def _peak_spans(self) -> tuple[Span, ...]:
        spans: list[Span] = [f"Highest reading in {_duration(self.open_s)}: "]
        for n, (device, size_bytes) in enumerate(self.peaks):
            spans += [", " if n else "", f"{device} ", Size(size_bytes)]
        return (*spans, ". Shorter peaks than the time between two readings are not seen.")


def _shown(bar: Bar) -> Bar | Text:
    """Give a bar that says what its track stands for; one without a reading is its reason."""
    if not bar.segments:
        return Text((f"{bar.label}: {bar.note}",))
    if bar.total_bytes is None or not bar.note:
        return bar
    return dataclasses.replace(bar, note=f"of {bytes_text(bar.total_bytes)}, {bar.note}")


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Still:
    """An output of its own that is redrawn at the end of cells and when the view closes.

    Attributes:
        css_class: its class in the page, by which the live view hides it while both are there.
    """

    def __init__(self, css_class: str) -> None:
        self.css_class = css_class
        self._shown: LivePicture | None = None
        self._not_before = 0.0
        self._png: dict[str, Any] = {}

    def show(self, picture: LivePicture) -> None:
        """Put the output where the running cell's output goes, without the costly PNG."""
        page.publish(self._bundle(picture), self.css_class)

    def update(self, picture: LivePicture, *, final: bool = False) -> None:
        """Redraw it; unless `final`, only if drawing stays under 5 % of the user's time."""
        began = time.monotonic()
        too_soon = began < self._not_before or self._same(picture)
        if not page.in_notebook() or (too_soon and not final):
            return
        # Elsewhere, matplotlib may be drawing for the user in the main thread at this moment.
        if threading.current_thread() is threading.main_thread():
            self._png = _png(picture)
        page.publish(self._bundle(picture) | self._png, self.css_class, update=True)
        self._shown = picture
        now = time.monotonic()
        self._not_before = now + min((now - began) / _PNG_SHARE, _MAX_REST_S)

    def _same(self, picture: LivePicture) -> bool:
        shown = self._shown
        return shown is not None and (shown.bars, shown.error) == (picture.bars, picture.error)

    def _bundle(self, picture: LivePicture) -> dict[str, Any]:
        style = f"<style>{_UNLOADED.format(self.css_class)} {{ display: none; }}</style>"
        html = f'<div class="{self.css_class}">{style}{picture.html()}</div>'
        return {"text/plain": picture.text(), "text/html": html}


def _png(picture: LivePicture) -> dict[str, Any]:
    """Draw for readers that drop HTML; a notebook without it still has text and HTML."""
    try:
        return {"image/png": base64.b64encode(picture.png()).decode()}
    except Exception:
        return {}
