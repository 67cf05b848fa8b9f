"""Views as plain text, for a terminal and for people who listen to a screen reader.

No colours and no escape codes: the same text goes into logs and files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

from nbinspect.blocks import (
    Advice,
    Bar,
    Block,
    Column,
    Fold,
    Graph,
    HeatMap,
    Histogram,
    Table,
    Text,
    Timeline,
    View,
)
from nbinspect.render.cells import bar_total, cell_text, is_number, more_text
from nbinspect.render.columns import BandLine, columns
from nbinspect.render.curve import Curve, Tick, curve
from nbinspect.render.format import (
    bytes_text,
    cut_end,
    cut_middle,
    pad,
    percent,
    printable,
    seconds,
    text_width,
    wrap,
)
from nbinspect.render.heat import heat_has_bad, heat_share, squeezed
from nbinspect.render.palette import hue
from nbinspect.render.tree import tree
from nbinspect.render.words import spans_text

MIN_WIDTH = 40
MAX_BAR_WIDTH = 32
SHORT_FOLD_LINES = 6
EIGHTHS = "▏▎▍▌▋▊▉█"
STEPS = " ▁▂▃▄▅▆▇█"
CHART_LINES = 4
MAX_CHART_WIDTH = 72
# First only what is wider than the first of these gives way, then the rest.
LEAST_WIDTHS = (18, 9, 1)
# How much room a kind of column deserves where there is not enough for all.
WEIGHTS = {
    "text": 1.0,
    "name": 2.2,
    "code": 1.8,
    "kind": 1.3,
    "bytes": 1.4,
    "change": 1.4,
    "count": 1.4,
    "percent": 1.4,
}


def to_text(view: View, width: int = 88) -> str:
    """Render a view as lines of at most `width` columns; below 40 it is taken as 40."""
    return _paragraphs(view, max(width, MIN_WIDTH))


def _paragraphs(view: View, width: int) -> str:
    paragraphs = [_lines(block, width) for block in view]
    return "\n\n".join("\n".join(line.rstrip() for line in lines) for lines in paragraphs if lines)


def _lines(block: Block, width: int) -> list[str]:
    match block:
        case Text():
            return _text(block, width)
        case Advice():
            return _advice(block, width)
        case Bar():
            return _bar(block, width)
        case Table():
            return _table(block, width)
        case Timeline():
            return _timeline(block, width)
        case Histogram():
            return _histogram(block, width)
        case HeatMap():
            return _heat_map(block, width)
        case Graph():
            return tree(block, width)
        case Fold():
            return _fold(block, width)
        case _:
            assert_never(block)


def _text(block: Text, width: int) -> list[str]:
    mark = "! " if block.role == "action" else ""
    return _hang(mark, wrap(spans_text(block.spans), width - len(mark)))


def _hang(mark: str, lines: list[str]) -> list[str]:
    """Put a mark before the first line and as much room before the others."""
    return [(mark if at == 0 else " " * len(mark)) + line for at, line in enumerate(lines)]


def _advice(block: Advice, width: int) -> list[str]:
    sentence = spans_text(block.spans)
    if block.size_bytes is not None:
        sentence += f" (frees {bytes_text(block.size_bytes)})"
    lines = _hang("-> ", wrap(sentence, width - 3))
    # The code is never cut: it is there to be copied.
    return [*lines, f"       {printable(block.code)}"] if block.code else lines


def _bar(block: Bar, width: int) -> list[str]:
    total = bar_total(block)
    head = wrap(f"{printable(block.label)}: {total.text}", width)
    if not block.segments:
        return head
    names = [printable(s.label) for s in block.segments]
    sizes = [bytes_text(s.size_bytes) for s in block.segments]
    w_size = max(map(len, sizes))
    w_name = min(max(map(text_width, names)), width - 2 - w_size - 8 - 12)
    w_bar = min(MAX_BAR_WIDTH, width - 2 - w_name - w_size - 8 - 2)
    lines = []
    for segment, name, size in zip(block.segments, names, sizes, strict=True):
        share = segment.size_bytes / total.full_bytes if total.full_bytes else 0.0
        track = _track(share, w_bar, "░" if hue(segment.hue).empty else "")
        name = pad(cut_middle(name, w_name), w_name)
        lines.append(f"  {name}  {pad(size, w_size, right=True)}  {percent(share):>6}  {track}")
    return [*head, *lines]


def _track(share: float, width: int, fill: str = "") -> str:
    """Draw a share of `width` columns in eighths; what is not nothing is at least a sliver."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    if fill:
        return fill * max(1, eighths // 8) if eighths else ""
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest - 1] if rest else "")


def _table(block: Table, width: int) -> list[str]:
    title = [printable(block.title)] if block.title else []
    if not block.rows and not block.n_more:
        return [*title, "  nothing"]
    texts = [
        [cell_text(cell, column) for cell, column in zip(row, block.columns, strict=True)]
        for row in block.rows
    ]
    headings = [printable(column.title) for column in block.columns]
    widths = _column_widths(block.columns, [headings, *texts], width - 2)
    lines = [_row(headings, block.columns, widths)]
    lines.append("  " + "  ".join("─" * w for w in widths))
    lines += [_row(row, block.columns, widths) for row in texts]
    if block.n_more:
        lines.append("  " + more_text(block))
    return [*(cut_end(line, width) for line in title), *lines]


def _column_widths(columns: Sequence[Column], rows: list[list[str]], width: int) -> list[int]:
    """Give each column the room it wants; where that is too much, the widest texts give way."""
    widths = [max(text_width(row[i]) for row in rows) for i in range(len(columns))]
    spare = sum(widths) + 2 * (len(widths) - 1) - width
    for least in LEAST_WIDTHS:
        while spare > 0:
            wide = [i for i, w in enumerate(widths) if w > least]
            if not wide:
                break
            widths[max(wide, key=lambda i: widths[i] / WEIGHTS[columns[i].kind])] -= 1
            spare -= 1
    return widths


def _row(texts: list[str], columns: Sequence[Column], widths: list[int]) -> str:
    cells = []
    for text, column, width in zip(texts, columns, widths, strict=True):
        cut = cut_middle if column.kind == "name" else cut_end
        cells.append(pad(cut(text, width), width, right=is_number(column)))
    return "  " + "  ".join(cells)


def _timeline(block: Timeline, width: int) -> list[str]:
    title = cut_end(block.title, width)
    drawn = curve(block, MAX_CHART_WIDTH)
    if not drawn.points:
        return [title, "  nothing was recorded"]
    lines = [title, *_chart(block, drawn, min(width - 14, MAX_CHART_WIDTH))]
    if block.baseline_bytes is not None:
        lines.append(f"  before: {bytes_text(block.baseline_bytes)}")
    for mark in block.marks:
        text = f"{printable(mark.label)}: {bytes_text(mark.size_bytes)} at {seconds(mark.time_s)}"
        lines += _hang("  ", wrap(text, width - 2))
    return lines


def _chart(block: Timeline, drawn: Curve, width: int) -> list[str]:
    """Draw columns of blocks from 0 to the highest point, four lines high."""
    heights = _heights(drawn, width)
    top = max(heights) or 1.0
    eighths = [round(y / top * 8 * CHART_LINES) for y in heights]
    labels = [bytes_text(max(block.sizes_bytes)), *[""] * (CHART_LINES - 2), "0 B"]
    lines = [f"  {label:>9} │{row}" for label, row in zip(labels, _rows(eighths), strict=True)]
    end = seconds(max(block.times_s) - min(block.times_s))
    return [*lines, f"  {'':>9} └0{end:─>{width - 1}}"]


def _rows(eighths: Sequence[int]) -> list[str]:
    """Draw columns of blocks, from the top line down."""
    floors = [8 * (CHART_LINES - 1 - at) for at in range(CHART_LINES)]
    return ["".join(STEPS[min(max(e - floor, 0), 8)] for e in eighths) for floor in floors]


def _heights(drawn: Curve, n_columns: int) -> list[float]:
    """Give the highest point of each column."""
    heights = [0.0] * n_columns
    for (x, y), (next_x, _) in zip(drawn.points, drawn.points[1:], strict=False):
        first = min(int(x * n_columns), n_columns - 1)
        for at in range(first, max(first + 1, min(math.ceil(next_x * n_columns), n_columns))):
            heights[at] = max(heights[at], y)
    return heights


def _histogram(block: Histogram, width: int) -> list[str]:
    title = wrap(printable(block.title), width)
    if not any(block.counts):
        return [*title, "  nothing"]
    drawn = columns(block)
    n_chars = max(1, min(width - 14, MAX_CHART_WIDTH) // len(block.counts)) * len(block.counts)
    n_chars = min(n_chars, width - 14)
    heights = [0.0] * n_chars
    for one in drawn.columns:
        first = min(int(one.left * n_chars + 1e-9), n_chars - 1)
        for at in range(first, max(first + 1, round(one.right * n_chars))):
            heights[at] = max(heights[at], one.height)
    eighths = [math.ceil(y * 8 * CHART_LINES) for y in heights]
    labels = [drawn.y_ticks[0].label, *[""] * (CHART_LINES - 1)]
    lines = [f"  {label:>9} │{row}" for label, row in zip(labels, _rows(eighths), strict=True)]
    lines += [f"  {'':>9} └{'─' * n_chars}", f"  {'':>9}  {_axis(drawn.x_ticks, n_chars)}"]
    return [*title, *lines, *(_band(line, n_chars) for line in drawn.bands)]


def _axis(ticks: Sequence[Tick], width: int) -> str:
    """Write labels under their places, leaving out those that have no room."""
    line = ""
    for tick in ticks:
        w_label = text_width(tick.label)
        start = min(max(round(tick.at * width) - w_label // 2, 0), width - w_label)
        if start >= (text_width(line) + 1 if line else 0):
            line = pad(line, start) + tick.label
    return line


def _band(band: BandLine, width: int) -> str:
    track = [" "] * width
    for left, right, faint in band.pieces:
        for at in range(round(left * width), round(right * width)):
            track[at] = "░" if faint else "▒"
    return f"  {pad(cut_end(band.label, 9), 9, right=True)}  {''.join(track)}"


def _heat_map(block: HeatMap, width: int) -> list[str]:
    """Draw shades as bars of eight heights, as wide as there is room."""
    n_columns = max(map(len, block.values), default=0)
    if not n_columns:
        return [printable(block.title), "  nothing"]
    names = [cut_middle(label, min(34, width // 2 - 4)) for label in block.labels]
    w_name = max(map(text_width, names))
    n_shown = min(n_columns, width - w_name - 4)
    scale = f"{STEPS[1]} {block.low_text} to {STEPS[-1]} {block.high_text}"
    scale += ", ! not finite" if heat_has_bad(block) else ""
    lines = wrap(f"{printable(block.title)} ({scale})", width)
    for name, values in zip(names, block.values, strict=True):
        shades = "".join(heat_step(block, one) for one in squeezed(values, n_shown))
        lines.append(f"  {pad(name, w_name)}  {shades}")
    ends = max(1, n_shown - text_width(block.first) - text_width(block.last))
    return [*lines, f"  {' ' * w_name}  {block.first}{' ' * ends}{block.last}"]


def heat_step(block: HeatMap, value: float | None) -> str:
    """Give the bar that stands for a value."""
    if value is None:
        return " "
    return "!" if math.isnan(value) else STEPS[1 + round(7 * heat_share(block, value))]


def _fold(block: Fold, width: int) -> list[str]:
    title = cut_end(block.title, width - 2)
    inside = _paragraphs(block.blocks, width - 2).splitlines()
    if len(inside) > SHORT_FOLD_LINES:
        return [f"+ {title}"]
    return [f"- {title}", *(f"  {line}" for line in inside)]
