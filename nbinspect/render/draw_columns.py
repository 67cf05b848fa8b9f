"""A histogram as a drawing."""

from __future__ import annotations

from nbinspect.blocks import Histogram
from nbinspect.render.columns import BandLine, columns
from nbinspect.render.figure import ACCENT, ALERT, LINE, MUTED, TINT, Sheet
from nbinspect.render.format import printable

HEIGHT = 110
LEFT, RIGHT = 72, 12
BAND, BAND_GAP = 9, 7
FAINT = "#8cc0de"  # the accent with as much paper
FAINT_BAND = "#b3b7bb"
FILLS = {"plain": ACCENT, "faint": FAINT, "alert": ALERT}


def draw_columns(sheet: Sheet, block: Histogram) -> None:
    """Draw the columns, the axis, and under it the bands."""
    title = sheet.fit(printable(block.title), sheet.right - sheet.left, 13)
    sheet.text(sheet.left, sheet.y + 13, title, weight="bold")
    sheet.y += 26
    if not any(block.counts):
        sheet.text(sheet.left, sheet.y + 12, "nothing", size=12, color=MUTED)
        sheet.y += 18
        return
    drawn = columns(block)
    left, width = sheet.left + LEFT, sheet.right - sheet.left - LEFT - RIGHT
    bottom = sheet.y + HEIGHT
    for tick in drawn.y_ticks:
        y = bottom - tick.at * HEIGHT
        sheet.line([left, left + width], [y, y], LINE)
        sheet.text(left - 8, y + 4, tick.label, size=11, color=MUTED, align="right")
    for one in drawn.columns:
        x, height = left + one.left * width, one.height * HEIGHT
        room = (one.right - one.left) * width
        sheet.box(x + 0.5, bottom - height, max(room - 1, 1), height, FILLS[one.look], above=3)
    sheet.line([left, left + width], [bottom, bottom], MUTED)
    for tick in drawn.x_ticks:
        x = left + tick.at * width
        sheet.text(x, bottom + 17, tick.label, size=11, color=MUTED, align="center")
    sheet.y = bottom + 28
    for line in drawn.bands:
        _band(sheet, line, left, width)


def _band(sheet: Sheet, line: BandLine, left: float, width: float) -> None:
    label = sheet.fit(line.label, LEFT - 8, 11)
    sheet.text(left - 8, sheet.y + BAND - 1, label, size=11, color=MUTED, align="right")
    sheet.box(left, sheet.y, width, BAND, TINT)
    for start, end, faint in line.pieces:
        fill = FAINT_BAND if faint else MUTED
        sheet.box(left + start * width, sheet.y, (end - start) * width, BAND, fill, above=2)
    sheet.y += BAND + BAND_GAP
