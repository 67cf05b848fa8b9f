"""Who holds the memory, refreshed between cells where that costs nothing one would notice."""

from __future__ import annotations

import sys
import time
from typing import Any

from nbinspect.blocks import Bar, Segment
from nbinspect.records import to_plain
from nbinspect.render.palette import hue, kind_words

_MAX_COST_S = 0.3
_MAX_SHARE = 0.05


def plain_bars(bars: tuple[Bar, ...]) -> list[dict[str, Any]]:
    """Give bars as the page takes them, with the look of each part."""
    plain: list[dict[str, Any]] = [to_plain(bar) for bar in bars]
    for segment in (segment for bar in plain for segment in bar["segments"]):
        look = hue(segment["hue"])
        segment |= {"fill": look.fill, "hatched": look.hatched}
    return plain


class HolderBars:
    """The census of the last cell's end, as one bar per device.

    The census walks the heap, so it never runs in the sampling thread. It is taken when a cell
    ends, unless the last one was slow or quick cells would feel it.
    """

    def __init__(self) -> None:
        self.bars: tuple[Bar, ...] = ()
        self.taken_s = 0.0
        self.cost_s = 0.0
        self.error = ""
        self._warm = False

    @property
    def slow(self) -> bool:
        """Whether a cell's end is no place for a census; the first one also loads code."""
        return self._warm and self.cost_s > _MAX_COST_S

    def refresh(self) -> bool:
        """Take a census if it is due; say whether one was taken."""
        began = time.monotonic()
        if self.slow or self.cost_s > _MAX_SHARE * (began - self.taken_s):
            return False
        if "torch" not in sys.modules:  # no tensors yet, and loading it is the user's to do
            return False
        try:
            self.bars, self.error = _census(), ""
        except Exception as error:
            self.bars, self.error = (), f"{type(error).__name__}: {error}"
        self._warm = self.taken_s > 0
        self.taken_s = time.monotonic()
        self.cost_s = self.taken_s - began
        return True

    def to_page(self) -> dict[str, Any]:
        """Give what the page needs to draw the row and to say how old it is."""
        return {
            "bars": plain_bars(self.bars),
            "t": self.taken_s,
            "slow": self.slow,
            "cost_s": self.cost_s,
            "error": self.error,
        }


def _census() -> tuple[Bar, ...]:
    import nbinspect

    devices = nbinspect.gpumem().devices
    return tuple(_bar(each.device, each.by_kind) for each in devices if each.by_kind)


def _bar(device: str, by_kind: tuple[tuple[str, int], ...]) -> Bar:
    segments = tuple(Segment(kind_words(kind), size_bytes, kind) for kind, size_bytes in by_kind)
    return Bar(f"{device}, by holder", segments, note=f"in tensors at {time.strftime('%H:%M:%S')}")
