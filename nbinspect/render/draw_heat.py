"""A heat map as a drawing: names, shades, and what the shades stand for."""

from __future__ import annotations

from nbinspect.blocks import HeatMap
from nbinspect.render.figure import ACCENT, ALERT, MONO, MUTED, Sheet
from nbinspect.render.format import printable
from nbinspect.render.heat import LIGHTEST, heat_has_bad, heat_pixels

HEAT_ROW = 18
MOST_NAME = 280.0
SCALE_WIDTH, SCALE_STEPS = 120.0, 24


def draw_heat_map(sheet: Sheet, block: HeatMap) -> None:
    """Draw one row of shades under the other, with their names at the left."""
    title = sheet.fit(printable(block.title), sheet.right - sheet.left, 13)
    sheet.text(sheet.left, sheet.y + 13, title, weight="bold")
    sheet.y += 24
    if not block.values or not block.values[0]:
        sheet.text(sheet.left, sheet.y + 12, "nothing", size=12, color=MUTED)
        sheet.y += 17
        return
    names = [sheet.fit(printable(one), MOST_NAME, 12, MONO, middle=True) for one in block.labels]
    left = sheet.left + max(sheet.text_width(one, 12, MONO) for one in names) + 12
    for at, name in enumerate(names):
        sheet.text(sheet.left, sheet.y + at * HEAT_ROW + 13, name, size=12, family=MONO)
    height = HEAT_ROW * len(names)
    sheet.image(heat_pixels(block), left, sheet.y, sheet.right - left, height)
    sheet.y += height
    for x, words, align in ((left, block.first, "left"), (sheet.right, block.last, "right")):
        sheet.text(x, sheet.y + 14, printable(words), size=11, color=MUTED, align=align)
    sheet.y += 22
    _scale(sheet, block, left)


def _scale(sheet: Sheet, block: HeatMap, x: float) -> None:
    """Say what the lightest and the darkest shade stand for."""
    low = printable(block.low_text)
    sheet.text(x, sheet.y + 12, low, size=11, color=MUTED)
    x += sheet.text_width(low, 11) + 8
    accent: tuple[int, int, int] = tuple(bytes.fromhex(ACCENT[1:]))  # type: ignore[assignment]
    steps = (LIGHTEST + (1 - LIGHTEST) * n / (SCALE_STEPS - 1) for n in range(SCALE_STEPS))
    sheet.image([[(*accent, round(255 * one)) for one in steps]], x, sheet.y + 3, SCALE_WIDTH, 10)
    x += SCALE_WIDTH + 8
    high = printable(block.high_text)
    sheet.text(x, sheet.y + 12, high, size=11, color=MUTED)
    if heat_has_bad(block):
        x += sheet.text_width(high, 11) + 24
        sheet.box(x, sheet.y + 3, 10, 10, ALERT)
        sheet.text(x + 16, sheet.y + 12, "not finite", size=11, color=MUTED)
    sheet.y += 20
