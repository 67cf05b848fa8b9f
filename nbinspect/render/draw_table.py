"""A table as a drawing: columns that give way to each other, swatches, and small bars."""

from __future__ import annotations

from nbinspect.blocks import Cell, Column, Table, Unavailable
from nbinspect.render.cells import cell_text, is_number, largest, more_text
from nbinspect.render.figure import INK, MONO, MUTED, ROW, SANS, TINT, Sheet
from nbinspect.render.format import printable
from nbinspect.render.palette import hue

SHARE = 44


def draw_table(sheet: Sheet, block: Table) -> None:
    """Draw rows under headings, with a thin line below each."""
    if block.title:
        sheet.text(
            sheet.left,
            sheet.y + 13,
            sheet.fit(printable(block.title), sheet.right - sheet.left, 13),
            weight="bold",
        )
        sheet.y += 20
    if not block.rows and not block.n_more:
        sheet.text(sheet.left, sheet.y + 12, "nothing", size=12, color=MUTED)
        sheet.y += 17
        return
    edges = _columns(sheet, block)
    headings = [printable(column.title) for column in block.columns]
    for (left, right), column, heading in zip(edges, block.columns, headings, strict=True):
        _cell(sheet, (left, right), heading, is_number(column), color=MUTED)
    _rule(sheet, edges[-1][1])
    for row in block.rows:
        for at, (cell, column) in enumerate(zip(row, block.columns, strict=True)):
            _decorate(sheet, cell, column, edges[at], largest(block, at))
            left, right = edges[at]
            shift = 16 if column.kind == "kind" and isinstance(cell, str) else 0
            missing = cell is None or isinstance(cell, Unavailable)
            _cell(
                sheet,
                (left + shift, right),
                cell_text(cell, column),
                is_number(column),
                color=MUTED if missing else INK,
                family=MONO if column.kind in ("name", "code") and not missing else SANS,
                middle=column.kind == "name",
            )
        _rule(sheet, edges[-1][1])
    if block.n_more:
        sheet.text(sheet.left, sheet.y + 15, more_text(block), size=12, color=MUTED)
        sheet.y += ROW


def _rule(sheet: Sheet, right: float) -> None:
    sheet.y += ROW
    sheet.line([sheet.left, right], [sheet.y, sheet.y])


def _cell(
    sheet: Sheet,
    edges: tuple[float, float],
    text: str,
    right_aligned: bool,
    *,
    color: str,
    family: str = SANS,
    middle: bool = False,
) -> None:
    left, right = edges
    text = sheet.fit(text, right - left, 12, family, middle=middle)
    x, align = (right, "right") if right_aligned else (left, "left")
    sheet.text(x, sheet.y + 15, text, size=12, family=family, color=color, align=align)


def _decorate(
    sheet: Sheet, cell: Cell, column: Column, edges: tuple[float, float], top: float
) -> None:
    """Draw what stands before a cell's words: a swatch, or a small bar of its share."""
    if column.kind == "kind" and isinstance(cell, str):
        look = hue(cell)
        sheet.box(edges[0], sheet.y + 6, 10, 10, look.fill, hatched=look.hatched, edge=True)
    if column.kind == "bytes" and isinstance(cell, int | float) and top:
        x = edges[1] - 72 - SHARE
        if x >= edges[0] - 1:
            sheet.box(x, sheet.y + 8, SHARE, 6, TINT)
            sheet.box(x, sheet.y + 8, SHARE * abs(cell) / top, 6, MUTED)


def _columns(sheet: Sheet, block: Table) -> list[tuple[float, float]]:
    """Give the left and right edge of each column; the widest texts give way to the others."""
    widths = [_wanted(sheet, block, at) for at in range(len(block.columns))]
    gap = 18.0
    room = max(10.0, sheet.right - sheet.left - gap * (len(widths) - 1))
    while sum(widths) > room + 1:
        widest = max(widths)
        second = max([w for w in widths if w < widest - 1], default=widest / 2)
        n_widest = sum(w >= widest - 1 for w in widths)
        fair = max(second, (room - sum(w for w in widths if w < widest - 1)) / n_widest)
        widths = [fair if w >= widest - 1 else w for w in widths]
    edges, x = [], sheet.left
    for width in widths:
        edges.append((x, x + width))
        x += width + gap
    return edges


def _wanted(sheet: Sheet, block: Table, at: int) -> float:
    """Give the width that a column would like."""
    column = block.columns[at]
    family = MONO if column.kind in ("name", "code") else SANS
    texts = [cell_text(row[at], column) for row in block.rows]
    widest = max((sheet.text_width(text, 12, family) for text in texts), default=0.0)
    extra = {"kind": 16.0, "bytes": 0.0}.get(column.kind, 0.0)
    least = SHARE + 72.0 if column.kind == "bytes" else 0.0
    return max(widest + extra, sheet.text_width(printable(column.title), 12), least) + 1
