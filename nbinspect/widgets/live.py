"""Memory bars that keep moving while cells run."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbinspect.widgets import page
from nbinspect.widgets.sampler import checked_hz, read
from nbinspect.widgets.session import OPEN, LiveSession
from nbinspect.widgets.still import LivePicture

_HERE = Path(__file__).parent
_MAX_OPEN = 8


class LiveMemory(anywidget.AnyWidget):
    """Bars of memory counters that a thread keeps up to date until they are closed.

    Args:
        hz: readings a second, 0.2 to 20.

    Raises:
        ValueError: `hz` is out of range.
    """

    _esm = (_HERE / "live.js").read_text("utf-8")
    _css = (_HERE / "live.css").read_text("utf-8")
    sample: Any = traitlets.Dict().tag(sync=True)
    history: Any = traitlets.List().tag(sync=True)
    holders: Any = traitlets.Dict().tag(sync=True)
    still_class: Any = traitlets.Unicode().tag(sync=True)

    _session: LiveSession | None = None

    def __init__(self, *, hz: float = 5.0) -> None:
        rate = checked_hz(hz)
        super().__init__()
        self.on_msg(_close_if_asked)
        self._session = LiveSession(rate, self)

    def show(self) -> None:
        """Put the bars, and the picture that outlives them, under the running cell."""
        if self._session is not None:
            self._session.show(self._bundle())

    def close(self) -> None:
        """Stop the bars and take them off the page; may be called twice."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
        super().close()
        self.layout.close()  # a widget of its own, with a comm of its own

    def _bundle(self) -> dict[str, Any]:
        bundle: Any = self._repr_mimebundle_()
        data: dict[str, Any] = bundle[0] if isinstance(bundle, tuple) else bundle
        return data | {"text/plain": "Live memory bars. The last picture of them follows."}


def _close_if_asked(widget: LiveMemory, content: dict[str, Any], _buffers: Any) -> None:
    if content.get("kind") == "close":
        widget.close()


def open_live(*, hz: float = 5.0) -> None:
    """Show live memory bars; see `nbinspect.widgets.open_live`."""
    rate = checked_hz(hz)
    if not page.in_notebook():
        picture = LivePicture(read().bars, (), time.strftime("%H:%M:%S"), 0.0)
        sys.stdout.write(f"Live bars need a notebook; this is the memory now.\n{picture.text()}\n")
        return
    _make_room(page.cell_id())
    if page.in_colab():
        LiveSession(rate, None).show(None)
    else:
        LiveMemory(hz=rate).show()


def _make_room(cell_id: str) -> None:
    """Close what a second run of the same cell replaces, and the oldest of very many views."""
    replaced = [each for each in OPEN if cell_id and each.cell_id == cell_id]
    too_many = OPEN[: max(0, len(OPEN) + 1 - _MAX_OPEN)]
    for session in {*replaced, *too_many}:
        session.close()
