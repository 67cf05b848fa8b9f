"""The curve of an allocator snapshot: a click lists what was alive then, by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbinspect.render.format import bytes_text, count, printable
from nbinspect.render.style import style_sheet
from nbinspect.render.words import spans_text
from nbinspect.snapshots import AllocatorSnapshot
from nbinspect.snapshots.view import headline, moment, where_label
from nbinspect.widgets import page

_HERE = Path(__file__).parent
N_LINES = 12
N_POINTS = 900  # of the curve; a picture is not wider
# A saved notebook has no kernel to ask. The report is there, so the widget's place, where the front
# end would say "Loading widget...", is not shown.
_STILL_STYLE = (
    "<style>.jp-OutputArea-child:has(> .jp-OutputArea-output.lm-Panel):not(:has(.nba-allocations))"
    ":has(+ .jp-OutputArea-child .nba-still) { display: none; }</style>"
)


class AllocationTimeline(anywidget.AnyWidget):
    """A curve to click on; the kernel answers with the lines that held memory at that moment.

    Args:
        record: the snapshot, plain values that keep nothing alive.
    """

    _esm = (_HERE / "allocations.js").read_text("utf-8")
    _css = style_sheet() + (_HERE / "allocations.css").read_text("utf-8")
    curve: Any = traitlets.Dict().tag(sync=True)
    alive: Any = traitlets.Dict().tag(sync=True)

    def __init__(self, record: AllocatorSnapshot) -> None:
        super().__init__()
        self._record = record
        self.curve = _curve(record)
        self.look_at(record.peak_time_s)
        self.on_msg(_look_if_asked)

    def look_at(self, time_s: float) -> None:
        """List what was alive at a moment.

        Cost: a pass over the snapshot's allocations, some ms for 20,000.
        """
        record = self._record
        past = [one for one in record.timeline if one.time_s <= time_s] or [record.timeline[0]]
        lines = record.alive_at(time_s)
        rest = lines[N_LINES:]
        rows = [
            [
                printable(where_label(line.where, line.function)),
                printable(line.function),
                bytes_text(line.size_bytes),
                count(line.n_allocations),
            ]
            for line in lines[:N_LINES]
        ]
        more = bytes_text(sum(line.size_bytes for line in rest))
        self.alive = {
            "time_s": time_s,
            "title": f"Alive {moment(record, time_s)}: {bytes_text(past[-1].allocated_bytes)}",
            "others": (
                f"Active (dotted): {bytes_text(past[-1].active_bytes)}. "
                f"Reserved (dashed): {bytes_text(past[-1].reserved_bytes)}."
            ),
            "rows": rows,
            "more": f"and {count(len(rest))} more lines, {more} together" if rest else "",
        }

    def show(self) -> None:
        """Put the curve under the running cell."""
        bundle: Any = self._repr_mimebundle_()
        data: dict[str, Any] = bundle[0] if isinstance(bundle, tuple) else bundle
        page.publish(data | {"text/plain": ""}, f"{self.model_id}-curve")

    def close(self) -> None:
        """Take the curve off the page; may be called twice."""
        super().close()
        self.layout.close()  # a widget of its own, with a comm of its own


def _curve(record: AllocatorSnapshot) -> dict[str, Any]:
    """Give the curve's points, the highest of each run, and what its axes say."""
    step = max(1, -(-len(record.timeline) // N_POINTS))
    runs = [record.timeline[at : at + step] for at in range(0, len(record.timeline), step)]
    points = [max(run, key=lambda one: one.allocated_bytes) for run in runs]
    start, end = record.timeline[0].time_s, record.timeline[-1].time_s
    top = max(one.reserved_bytes for one in points)
    return {
        "times": [one.time_s for one in points],
        "allocated": [one.allocated_bytes for one in points],
        "active": [one.active_bytes for one in points],
        "reserved": [one.reserved_bytes for one in points],
        "start": start,
        "end": max(end, start + 1e-9),
        "top": max(1, top, record.peak_bytes),
        "top_text": bytes_text(top),
        "middle_text": bytes_text(top // 2),
        "end_text": moment(record, end).partition(" ")[2],
        "peak_s": record.peak_time_s,
        "peak": record.peak_bytes,
        "headline": printable(spans_text(headline(record), "")),
        "title": f"{printable(record.name)}, GPU {record.device}: click to list what was alive",
    }


def _look_if_asked(widget: AllocationTimeline, content: dict[str, Any], _buffers: Any) -> None:
    if content.get("kind") == "look" and isinstance(content.get("time_s"), int | float):
        widget.look_at(float(content["time_s"]))


def show_snapshot(record: AllocatorSnapshot) -> None:
    """Show the curve to click on and, under it, the report, which stays when no kernel answers."""
    timeline = AllocationTimeline(record)
    timeline.show()
    data = dict(record._repr_mimebundle_())
    data["text/html"] = f'<div class="nba-still">{_STILL_STYLE}{data["text/html"]}</div>'
    page.publish(data, f"{timeline.model_id}-still")
