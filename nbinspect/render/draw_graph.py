"""A placed graph as a drawing, the same as in HTML."""

from __future__ import annotations

from nbinspect.blocks import Graph, HeatScale
from nbinspect.render.figure import ACCENT, ALERT, INK, LINE, MONO, MUTED, PAPER, TINT, Sheet
from nbinspect.render.format import printable
from nbinspect.render.graph_svg import HOTTEST
from nbinspect.render.nodes import edge_line, frame_line, label_line, small_line
from nbinspect.render.palette import GREY, hue
from nbinspect.render.picture import caption, placed
from nbinspect.render.placed import Arrow, Box, Frame, Placed, Point

LOOKS = {  # fill, outline, its width
    "root": (TINT, INK, 2.5),
    "target": (ACCENT, ACCENT, 1.0),
    "holder": (PAPER, GREY, 1.0),
    "stub": (PAPER, GREY, 1.0),
}
TEXT_PAD = 8
RAMP = 24


def draw_graph(sheet: Sheet, block: Graph) -> None:
    """Write a graph with its title and caption onto a sheet."""
    room = sheet.right - sheet.left
    if block.title:
        title = sheet.fit(printable(block.title), room, 13)
        sheet.text(sheet.left, sheet.y + 13, title, weight="bold")
        sheet.y += 24
    if not block.nodes:
        sheet.text(sheet.left, sheet.y + 12, "nothing", size=12, color=MUTED)
        sheet.y += 18
        return
    drawn = placed(block)
    scale = min(1.0, room / drawn.width)
    _picture(sheet, drawn, scale)
    sheet.y += drawn.height * scale + 6
    if block.scale is not None:
        _scale(sheet, block.scale)
    for line in sheet.wrapped(caption(block, drawn), room, 12):
        sheet.text(sheet.left, sheet.y + 12, line, size=12, color=MUTED)
        sheet.y += 17


def _picture(sheet: Sheet, drawn: Placed, scale: float) -> None:
    left = sheet.left + (sheet.right - sheet.left - drawn.width * scale) / 2
    top = sheet.y

    def at(x: float, y: float) -> Point:
        return left + x * scale, top + y * scale

    for frame in drawn.frames:
        _frame(sheet, frame, at(frame.x, frame.y), scale)
    for arrow in drawn.arrows:
        sheet.curve([at(*point) for point in arrow.line], MUTED, curved=arrow.curved)
        if arrow.head:
            sheet.polygon([at(*point) for point in arrow.head], MUTED)
    for arrow in drawn.arrows:
        if arrow.label_at:
            _label(sheet, arrow, at(*arrow.label_at), scale)
    for box in drawn.boxes:
        _box(sheet, box, at(box.x, box.y), drawn.columns, scale)


def _frame(sheet: Sheet, placed: Frame, at: Point, scale: float) -> None:
    x, y = at
    width, height = placed.width * scale, placed.height * scale
    sheet.frame(x, y, width, height, fill="none", color=GREY, above=0.5)
    words = sheet.fit(frame_line(placed.frame), width - 16 * scale, 12 * scale)
    sheet.text(x + 9 * scale, y + 15 * scale, words, size=12 * scale, color=MUTED)


def _scale(sheet: Sheet, scale: HeatScale) -> None:
    """Say what the colour of the boxes stands for."""
    x, y = sheet.left, sheet.y + 12
    for words in (scale.title, scale.low):
        sheet.text(x, y, words, size=12, color=MUTED)
        x += sheet.text_width(words, 12) + 10
    for n in range(RAMP):
        fill = blended(scale.hue, (n + 1) / RAMP)
        sheet.box(x + n * 120 / RAMP, y - 9, 120 / RAMP + 0.5, 10, fill)
    sheet.text(x + 130, y, scale.high, size=12, color=MUTED)
    sheet.y += 19


def blended(name: str, heat: float) -> str:
    """Give a hue on white as strong as a box of this heat."""
    part = HOTTEST * heat
    fill = hue(name).fill
    parts = (int(fill[n : n + 2], 16) for n in (1, 3, 5))
    return "#" + "".join(f"{round(255 + (value - 255) * part):02x}" for value in parts)


def _label(sheet: Sheet, arrow: Arrow, at: Point, scale: float) -> None:
    words, size = edge_line(arrow.edge), 11 * scale
    width = sheet.text_width(words, size)
    sheet.box(at[0] - width / 2 - 2, at[1] - size, width + 4, size * 1.3, PAPER, above=2)
    sheet.text(*at, words, size=size, color=MUTED, align="center")


def _box(sheet: Sheet, box: Box, at: Point, columns: int, scale: float) -> None:
    node, (x, y) = box.node, at
    width, height = box.width * scale, box.height * scale
    fill, color, line = LOOKS[node.role]
    if node.heat is not None and node.role != "target":
        fill = blended(node.heat_hue, node.heat)
    if node.alert:
        color, line = ALERT, 2.5
    sheet.frame(x, y, width, height, fill=fill, color=color, line=line, dashed=node.role == "stub")
    if node.hue != "OTHER" and node.role not in ("target", "stub"):
        look = hue(node.hue)
        sheet.box(
            x + 2 * scale,
            y + 4 * scale,
            4 * scale,
            height - 8 * scale,
            LINE if look.empty else look.fill,
            hatched=look.hatched,
            above=4,
        )
    _words(sheet, box, at, columns, scale)


def _words(sheet: Sheet, box: Box, at: Point, columns: int, scale: float) -> None:
    node, room = box.node, box.width * scale - TEXT_PAD
    x, middle = at[0] + box.width * scale / 2, at[1] + box.height * scale / 2
    small = small_line(node, columns)
    ink, grey = (PAPER, PAPER) if node.role == "target" else (INK, MUTED)
    weight = "bold" if node.role == "root" else "normal"
    label = sheet.fit(label_line(node, columns), room, 12 * scale, MONO, middle=True)
    y = middle + (-2.5 if small else 4) * scale
    sheet.text(x, y, label, size=12 * scale, color=ink, family=MONO, weight=weight, align="center")
    if small:
        small = sheet.fit(small, room, 11 * scale)
        sheet.text(x, middle + 12.5 * scale, small, size=11 * scale, color=grey, align="center")
