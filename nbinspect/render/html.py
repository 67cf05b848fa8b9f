"""Views as one self-contained HTML fragment that reads well in every front end.

Untrusted notebooks and code hosts drop ``<style>`` and ``<svg>`` and keep ``<img>``. So the
fragment carries its pictures once more, as an image that the style sheet hides: without the style
sheet the bars are empty and invisible, and the image and plain tables are there. For that reason
nothing inside a picture is text: axis labels come from the style sheet too.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import assert_never

from nbinspect.blocks import (
    Advice,
    Bar,
    Block,
    Cell,
    Code,
    Column,
    Fold,
    Graph,
    HeatMap,
    HeatScale,
    Histogram,
    Size,
    Span,
    Table,
    Text,
    Timeline,
    Unavailable,
    View,
)
from nbinspect.render.cells import (
    bar_total,
    cell_text,
    is_number,
    largest,
    more_text,
)
from nbinspect.render.columns import columns
from nbinspect.render.curve import curve
from nbinspect.render.format import (
    bytes_text,
    cut_end,
    cut_middle,
    exact_bytes,
    printable,
    seconds,
)
from nbinspect.render.graph_svg import page_svg
from nbinspect.render.heat import heat_has_bad, heat_png, heat_words
from nbinspect.render.nodes import graph_words
from nbinspect.render.palette import css_class, hue
from nbinspect.render.picture import COLUMN_WIDTH, caption, placed, placed_narrow
from nbinspect.render.placed import Placed
from nbinspect.render.plot import plot, plot_columns
from nbinspect.render.style import style_sheet
from nbinspect.render.tree import tree
from nbinspect.render.words import bar_words, histogram_words, timeline_words

NAME_WIDTH = 52
CODE_WIDTH = 80
SHORT_CELL = 16
TREE_WIDTH = 80
HEAT_ROW, HEAT_WIDTH = 18, 560
SHRINK = 0.92  # of 12 pixels are 11
PICTURES = Bar | Timeline | Histogram | Graph
NOTHING_HERE = '<p class="nbi-quiet">nothing</p>'


def to_html(view: View) -> str:
    """Render a view as a ``<div class="nbi">`` that needs nothing from anywhere."""
    parts = [_block(block) for block in view]
    at = next((i for i, block in enumerate(view) if isinstance(block, PICTURES)), None)
    if at is not None:
        parts.insert(at, _fallback(view))
    return f'<div class="nbi"><style>{style_sheet()}</style>{"".join(parts)}</div>'


def _block(block: Block) -> str:
    match block:
        case Text():
            return _paragraph(block)
        case Advice():
            return _advice(block)
        case Bar():
            return _bar(block)
        case Table():
            return _table(block)
        case Timeline():
            return _timeline(block)
        case Histogram():
            return _histogram(block)
        case HeatMap():
            return _heat_map(block)
        case Graph():
            return _graph(block)
        case Fold():
            inside = "".join(_block(inner) for inner in block.blocks)
            return f'<details class="nbi-block"><summary>{_text(block.title)}</summary>{inside}</details>'
        case _:
            assert_never(block)


def _paragraph(block: Text) -> str:
    inside = _spans(block.spans)
    if block.role in ("headline", "action"):
        inside = f"<strong>{inside}</strong>"
    return f'<p class="nbi-block nbi-{block.role}">{inside}</p>'


def _text(text: str) -> str:
    """Make any text harmless, between tags and in an attribute's quotes."""
    return escape(printable(text), quote=True)


def _spans(spans: Sequence[Span]) -> str:
    return "".join(_span(span) for span in spans)


def _span(span: Span) -> str:
    match span:
        case Code(text):
            return f"<code>{_text(text)}</code>"
        case Size(n_bytes):
            return _size(n_bytes)
        case str():
            return _text(span)
        case _:
            assert_never(span)


def _size(n_bytes: int) -> str:
    return f'<span class="nbi-n" title="{exact_bytes(n_bytes)}">{_unbroken(n_bytes)}</span>'


def _unbroken(n_bytes: int) -> str:
    """Keep number and unit on one line, without a style sheet too."""
    return bytes_text(n_bytes).replace(" ", "\u00a0")


def _advice(block: Advice) -> str:
    back = (
        ""
        if block.size_bytes is None
        else f' <span class="nbi-back">frees {_size(block.size_bytes)}</span>'
    )
    code = f'<br><code class="nbi-mend">{_text(block.code)}</code>' if block.code else ""
    return f'<div class="nbi-block nbi-advice">{_spans(block.spans)}{back}{code}</div>'


def _bar(block: Bar) -> str:
    total = bar_total(block)
    full = total.full_bytes or 1
    segments, entries = [], []
    for segment in block.segments:
        css = css_class(segment.hue)
        title = f"{_text(segment.label)}: {exact_bytes(segment.size_bytes)}"
        if segment.size_bytes > 0 and not hue(segment.hue).empty:
            width = 100 * segment.size_bytes / full
            segments.append(
                f'<span class="nbi-seg {css}" style="width:{width:.3f}%" title="{title}"></span>'
            )
        entries.append(
            f'<span><span class="nbi-sw {css}"></span><span>{_text(segment.label)}</span> '
            f"{_size(segment.size_bytes)}</span>"
        )
    track = "".join(segments)
    return (
        f'<div class="nbi-block"><div class="nbi-head"><strong class="nbi-title">{_text(block.label)}'
        f"</strong> <span>{escape(total.text)}</span></div>"
        f'<div class="nbi-track" role="img" aria-label="{_text(bar_words(block))}">{track}</div>'
        f"{_legend(entries)}</div>"
    )


def _legend(entries: list[str]) -> str:
    """Set entries side by side; the dots between them are for where no style sheet does it."""
    if not entries:
        return ""
    inside = _unstyled(" · ").join(entries)
    return f'<p class="nbi-legend">{inside}</p>'


def _table(block: Table) -> str:
    title = f'<caption class="nbi-title">{_text(block.title)}</caption>' if block.title else ""
    if not block.rows and not block.n_more:
        heading = f'<p class="nbi-title">{_text(block.title)}</p>' if block.title else ""
        return f'<div class="nbi-block">{heading}{NOTHING_HERE}</div>'
    openings = [_opening(block, at) for at in range(len(block.columns))]
    tops = [largest(block, at) for at in range(len(block.columns))]
    head = "".join(
        f"<th{opening}>{_text(column.title)}</th>"
        for opening, column in zip(openings, block.columns, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{opening}>{_cell(cell, column, top)}</td>"
            for opening, cell, column, top in zip(openings, row, block.columns, tops, strict=True)
        )
        + "</tr>"
        for row in block.rows
    )
    if block.n_more:
        body += f'<tr class="nbi-more"><td colspan="{len(block.columns)}" style="text-align:left">{more_text(block)}</td></tr>'
    return (
        f'<table class="nbi-block nbi-table">{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _opening(block: Table, at: int) -> str:
    """Give the attributes of a column's cells; the inline style is for front ends' own tables."""
    column = block.columns[at]
    if is_number(column):
        return ' class="nbi-num"'
    css = "nbi-kind" if column.kind == "kind" else ""
    if column.kind == "text" and all(
        len(cell_text(row[at], column)) <= SHORT_CELL for row in block.rows
    ):
        css = "nbi-short"
    return f' class="{css}" style="text-align:left"'


def _cell(cell: Cell, column: Column, top: float) -> str:
    words = cell_text(cell, column)
    if cell is None:
        return f'<span class="nbi-none">{words}</span>'
    if isinstance(cell, Unavailable):
        return f'<span class="nbi-miss">{escape(words)}</span>'
    if isinstance(cell, str):
        return _words(cell, words, column)
    if column.kind == "change":
        return f'<span class="nbi-n" title="{exact_bytes(round(cell))}">{words}</span>'
    if column.kind == "bytes":
        share = 100 * abs(cell) / top if top else 0
        bar = f'<span class="nbi-share"><span style="width:{share:.1f}%"></span></span>'
        return bar + _size(round(cell))
    return words


def _words(cell: str, words: str, column: Column) -> str:
    if column.kind == "kind":
        return f'<span class="nbi-sw {css_class(cell)}"></span>{escape(words)}'
    if column.kind not in ("name", "code") or not words:
        return escape(words)
    cut = cut_middle(cell, NAME_WIDTH) if column.kind == "name" else cut_end(cell, CODE_WIDTH)
    title = f' title="{escape(words)}"' if cut != words else ""
    return (
        f"<code{title}>{_breakable(escape(cut)) if column.kind == 'name' else escape(cut)}</code>"
    )


def _breakable(name: str) -> str:
    """Let a long name break after its dots and brackets rather than anywhere."""
    return re.sub(r"(?<=[.\]])(?=[^.\]])", "<wbr>", name)


def _timeline(block: Timeline) -> str:
    drawn = curve(block)
    head = f'<div class="nbi-head"><strong class="nbi-title">{_text(block.title)}</strong></div>'
    if not drawn.points:
        return f'<div class="nbi-block">{head}<p class="nbi-quiet">nothing was recorded</p></div>'
    entries = [
        f'<span><span class="nbi-dot" data-t="{n}"></span><span>{_text(mark.label)}</span> '
        f"{_size(mark.size_bytes)} <span>at {seconds(mark.time_s)}</span></span>"
        for n, mark in enumerate(block.marks, start=1)
    ]
    if block.baseline_bytes is not None:
        entries.append(f"<span>dashed: before {_size(block.baseline_bytes)}</span>")
    return (
        f'<div class="nbi-block">{head}<div class="nbi-plot" role="img" '
        f'aria-label="{_text(timeline_words(block))}">{plot(drawn)}</div>{_legend(entries)}</div>'
    )


def _histogram(block: Histogram) -> str:
    head = f'<div class="nbi-head"><strong class="nbi-title">{_text(block.title)}</strong></div>'
    if not any(block.counts):
        return f'<div class="nbi-block">{head}{NOTHING_HERE}</div>'
    words = _text(histogram_words(block))
    return (
        f'<div class="nbi-block">{head}<div role="img" aria-label="{words}">'
        f"{plot_columns(columns(block))}</div></div>"
    )


def _heat_map(block: HeatMap) -> str:
    """Set names beside one picture that holds a pixel for each value, stretched to fit.

    The picture is an image, which no front end drops, and its size is an attribute.
    """
    head = f'<div class="nbi-head"><strong class="nbi-title">{_text(block.title)}</strong></div>'
    if not block.values or not block.values[0]:
        return f'<div class="nbi-block">{head}{NOTHING_HERE}</div>'
    data = base64.b64encode(heat_png(block)).decode("ascii")
    height = HEAT_ROW * len(block.labels)
    image = (
        f'<img class="nbi-shades-map" width="{HEAT_WIDTH}" height="{height}" '
        f'alt="{_text(heat_words(block))}" src="data:image/png;base64,{data}">'
    )
    rows = "".join(
        f'<tr><th style="text-align:left"><code>{_name(label)}</code></th>'
        + (f'<td rowspan="{len(block.labels)}">{image}</td>' if not at else "")
        + "</tr>"
        for at, label in enumerate(block.labels)
    )
    ends = (
        f'<div class="nbi-shades-ends"><span>{_text(block.first)}</span> '
        f"<span>{_text(block.last)}</span></div>"
    )
    return (
        f'<div class="nbi-block">{head}<table class="nbi-shades"><tbody>{rows}<tr><td></td>'
        f"<td>{ends}</td></tr></tbody></table>{_heat_legend(block)}</div>"
    )


def _name(label: str) -> str:
    cut = cut_middle(label, NAME_WIDTH)
    title = f' title="{_text(label)}"' if cut != printable(label) else ""
    return f"<span{title}>{escape(cut)}</span>"


def _unstyled(words: str) -> str:
    """Write what is seen only where no style sheet sets things apart, as in an untrusted notebook."""
    return f'<span class="nbi-sep">{words}</span>'


def _heat_legend(block: HeatMap) -> str:
    scale = f'{_unstyled(" to ")}<span class="nbi-shades-scale"></span>'
    entries = [f"<span>{_text(block.low_text)}</span>{scale}<span>{_text(block.high_text)}</span>"]
    if heat_has_bad(block):
        entries.append(
            '<span><span class="nbi-sw nbi-shades-bad"></span><span>not finite</span></span>'
        )
    return _legend(entries)


def _graph(block: Graph) -> str:
    title = f'<strong class="nbi-title">{_text(block.title)}</strong>' if block.title else ""
    head = f'<div class="nbi-head">{title}</div>' if title else ""
    if not block.nodes:
        return f'<div class="nbi-block">{head}{NOTHING_HERE}</div>'
    wide = placed(block)
    pictures = _picture(block, wide, "")
    if wide.width * SHRINK > COLUMN_WIDTH:
        # One step of the style sheet's: below it the picture made for narrow columns is shown.
        step = math.ceil(wide.width * SHRINK / 100)
        pictures = _picture(block, wide, f" nbi-from-{step}")
        pictures += _picture(block, placed_narrow(block), f" nbi-below-{step}")
    lines = "\n".join(escape(line) for line in tree(replace(block, title="", note=""), TREE_WIDTH))
    return (
        f'<div class="nbi-block">{head}{pictures}{scale_html(block.scale)}'
        f'<details><summary>As text</summary><pre class="nbi-tree">{lines}</pre></details></div>'
    )


def scale_html(scale: HeatScale | None) -> str:
    """Say what the colour of a graph's boxes stands for; "" if it has none."""
    if scale is None:
        return ""
    fill = hue(scale.hue).fill
    ramp = f"linear-gradient(90deg,{fill}0b,{fill}8c)"
    return (
        f'<div class="nbi-scale"><span>{_text(scale.title)}</span>{_unstyled(": ")}'
        f"<span>{_text(scale.low)}</span>{_unstyled(' to ')}"
        f'<span class="nbi-ramp" style="background:{ramp}"></span><span>{_text(scale.high)}</span>'
        "</div>"
    )


def _picture(block: Graph, drawn: Placed, css: str) -> str:
    return (
        f'<div class="nbi-picture{css}" style="--nbi-w:{drawn.width:g}">{page_svg(block, drawn)}'
        f'<p class="nbi-note">{escape(caption(block, drawn))}</p></div>'
    )


def _fallback(view: View) -> str:
    """Give the pictures of a view as an image, for places that drop the style sheet."""
    from nbinspect.render.png import pictures_to_png, pictures_width

    words = [_picture_words(block) for block in view if isinstance(block, PICTURES)]
    data = base64.b64encode(pictures_to_png(view)).decode("ascii")
    return (
        f'<img class="nbi-fallback" width="{pictures_width(view)}" '
        f'alt="{_text(". ".join(words))}" src="data:image/png;base64,{data}">'
    )


def _picture_words(block: PICTURES) -> str:
    match block:
        case Bar():
            return bar_words(block)
        case Timeline():
            return timeline_words(block)
        case Histogram():
            return histogram_words(block)
        case Graph():
            return graph_words(block)
        case _:
            assert_never(block)
