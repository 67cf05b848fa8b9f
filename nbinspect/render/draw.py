"""Each kind of block as a drawing; what they say is what HTML and text say."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from nbinspect.blocks import (
    Advice,
    Bar,
    Block,
    Fold,
    Graph,
    HeatMap,
    Histogram,
    Table,
    Text,
    Timeline,
    View,
)
from nbinspect.render.cells import bar_total
from nbinspect.render.curve import curve
from nbinspect.render.draw_columns import draw_columns
from nbinspect.render.draw_graph import draw_graph
from nbinspect.render.draw_heat import draw_heat_map
from nbinspect.render.draw_table import draw_table
from nbinspect.render.figure import (
    ACCENT,
    ALERT,
    INK,
    LINE,
    MONO,
    MUTED,
    PAPER,
    ROW,
    TINT,
    WIDTH,
    Sheet,
)
from nbinspect.render.format import bytes_text, printable, seconds
from nbinspect.render.palette import hue
from nbinspect.render.words import spans_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 16
PLOT_HEIGHT = 150


def figure(view: View, width: int = WIDTH) -> Figure:
    """Draw a view; call it, and save what it gives, inside `own_settings`."""
    sheet = Sheet(width)
    for at, block in enumerate(view):
        if at:
            sheet.y += GAP
        _draw(sheet, block)
    return sheet.finish()


def _draw(sheet: Sheet, block: Block) -> None:
    match block:
        case Text():
            _text(sheet, block)
        case Advice():
            _advice(sheet, block)
        case Bar():
            _bar(sheet, block)
        case Table():
            draw_table(sheet, block)
        case Timeline():
            _timeline(sheet, block)
        case Histogram():
            draw_columns(sheet, block)
        case HeatMap():
            draw_heat_map(sheet, block)
        case Graph():
            draw_graph(sheet, block)
        case Fold():
            _fold(sheet, block)
        case _:
            assert_never(block)


def _text(sheet: Sheet, block: Text) -> None:
    size = {"headline": 17, "body": 13, "note": 12, "action": 13}[block.role]
    weight = "bold" if block.role in ("headline", "action") else "normal"
    color = MUTED if block.role == "note" else INK
    indent = 12 if block.role == "action" else 0
    top = sheet.y
    _paragraph(
        sheet, spans_text(block.spans, ""), size=size, weight=weight, color=color, indent=indent
    )
    if block.role == "action":
        sheet.box(sheet.left, top, 3, sheet.y - top, ALERT)


def _paragraph(
    sheet: Sheet,
    text: str,
    *,
    size: float = 13,
    weight: str = "normal",
    color: str = INK,
    indent: float = 0,
) -> None:
    room = sheet.right - sheet.left - indent
    for line in sheet.wrapped(text, room, size, weight):
        sheet.text(sheet.left + indent, sheet.y + size, line, size=size, weight=weight, color=color)
        sheet.y += size * 1.4


def _advice(sheet: Sheet, block: Advice) -> None:
    top, sentence = sheet.y, spans_text(block.spans, "")
    if block.size_bytes is not None:
        sentence += f" (frees {bytes_text(block.size_bytes)})"
    _paragraph(sheet, sentence, indent=13)
    if block.code:
        x, y = sheet.left + 13, sheet.y + 3
        code = sheet.fit(printable(block.code), sheet.right - x - 16, 12, MONO)
        sheet.box(x, y, sheet.text_width(code, 12, MONO) + 16, 22, TINT)
        sheet.text(x + 8, y + 15, code, size=12, family=MONO)
        sheet.y = y + 22
    sheet.box(sheet.left, top, 3, sheet.y - top, ACCENT)


def _bar(sheet: Sheet, block: Bar) -> None:
    total = bar_total(block)
    label = sheet.fit(printable(block.label), sheet.right - sheet.left, 13, middle=True)
    sheet.text(sheet.left, sheet.y + 13, label, weight="bold")
    x = sheet.left + sheet.text_width(label, 13, weight="bold") + 8
    sheet.text(
        x, sheet.y + 13, sheet.fit(total.text, sheet.right - x, 13) if x < sheet.right - 60 else ""
    )
    sheet.y += 21
    room = sheet.right - sheet.left
    sheet.box(sheet.left, sheet.y, room, 18, TINT)
    x = sheet.left
    for segment in block.segments:
        look = hue(segment.hue)
        width = room * max(0, segment.size_bytes) / (total.full_bytes or 1)
        if not look.empty and width > 0:
            drawn = max(2.0, width - 1)
            sheet.box(
                min(x, sheet.right - drawn),
                sheet.y,
                drawn,
                18,
                look.fill,
                hatched=look.hatched,
                edge=True,
            )
        x += width
    sheet.y += 18
    _legend(sheet, block)


def _legend(sheet: Sheet, block: Bar) -> None:
    """Write the parts of a bar with their numbers, in as many lines as they need."""
    x = sheet.left
    if block.segments:
        sheet.y += 20
    for segment in block.segments:
        look, size = hue(segment.hue), bytes_text(segment.size_bytes)
        label = sheet.fit(printable(segment.label), 320, 12, middle=True)
        w_label, w_size = sheet.text_width(label, 12), sheet.text_width(size, 12, weight="bold")
        if x > sheet.left and x + 16 + w_label + 6 + w_size > sheet.right:
            x, sheet.y = sheet.left, sheet.y + 19
        sheet.box(
            x,
            sheet.y - 9,
            10,
            10,
            TINT if look.empty else look.fill,
            hatched=look.hatched,
            edge=True,
        )
        sheet.text(x + 16, sheet.y, label, size=12)
        sheet.text(x + 16 + w_label + 6, sheet.y, size, size=12, weight="bold")
        x += 16 + w_label + 6 + w_size + 20
    sheet.y += 4


def _timeline(sheet: Sheet, block: Timeline) -> None:
    drawn = curve(block)
    sheet.text(
        sheet.left,
        sheet.y + 13,
        sheet.fit(printable(block.title), sheet.right - sheet.left, 13),
        weight="bold",
    )
    sheet.y += 26
    if not drawn.points:
        _paragraph(sheet, "nothing was recorded", size=12, color=MUTED)
        return
    left, width, top, bottom = (
        sheet.left + 72,
        sheet.right - sheet.left - 84,
        sheet.y,
        sheet.y + PLOT_HEIGHT,
    )
    for tick in drawn.y_ticks:
        y = bottom - tick.at * PLOT_HEIGHT
        sheet.line([left, left + width], [y, y], LINE if tick.at else MUTED)
        sheet.text(left - 8, y + 4, tick.label, size=11, color=MUTED, align="right")
    for tick in drawn.x_ticks:
        sheet.text(
            left + tick.at * width, bottom + 17, tick.label, size=11, color=MUTED, align="center"
        )
    xs = [left + x * width for x, _ in drawn.points]
    ys = [bottom - y * PLOT_HEIGHT for _, y in drawn.points]
    sheet.steps(xs, ys, bottom)
    if drawn.baseline is not None:
        y = bottom - drawn.baseline * PLOT_HEIGHT
        sheet.line([left, left + width], [y, y], MUTED, linestyle=(0, (4, 3)))
    for x, y, number, _ in drawn.marks:
        _dot(sheet, left + x * width, bottom - y * PLOT_HEIGHT, number)
    sheet.y = top + PLOT_HEIGHT + 26
    _marks(sheet, block)


def _dot(sheet: Sheet, x: float, y: float, number: int) -> None:
    sheet.dot(x, y, 8, INK)
    sheet.text(x, y + 4, str(number), size=11, color=PAPER, weight="bold", align="center")


def _marks(sheet: Sheet, block: Timeline) -> None:
    """Write under a timeline what its numbers stand for."""
    for number, mark in enumerate(block.marks, start=1):
        _dot(sheet, sheet.left + 8, sheet.y + 10, number)
        words = f"{bytes_text(mark.size_bytes)} at {seconds(mark.time_s)}"
        room = sheet.right - sheet.left - 24 - sheet.text_width(words, 12, weight="bold") - 8
        label = sheet.fit(printable(mark.label), room, 12)
        sheet.text(sheet.left + 24, sheet.y + 14, label, size=12)
        x = sheet.left + 24 + sheet.text_width(label, 12) + 8
        sheet.text(x, sheet.y + 14, words, size=12, weight="bold")
        sheet.y += ROW
    if block.baseline_bytes is not None:
        words = f"dashed: before, {bytes_text(block.baseline_bytes)}"
        sheet.text(sheet.left, sheet.y + 14, words, size=12, color=MUTED)
        sheet.y += ROW


def _fold(sheet: Sheet, block: Fold) -> None:
    """A picture cannot be unfolded: the title says what there is."""
    title = sheet.fit(f"▸ {printable(block.title)}", sheet.right - sheet.left, 13)
    sheet.text(sheet.left, sheet.y + 13, title, color=MUTED)
    sheet.y += 18
