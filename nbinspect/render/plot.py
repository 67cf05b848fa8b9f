"""A curve inside HTML: lines that stretch with the page, under labels that keep their size."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nbinspect.render.columns import BandLine, Columns
from nbinspect.render.curve import Curve


def plot(drawn: Curve) -> str:
    """Draw a curve with its axes, baseline and marks, to be put into a ``nbi-plot``."""
    line = svg_steps(drawn.points)
    area = f"{line}V1000H0Z"
    parts = [_label("nbi-y", "bottom", tick.at, tick.label) for tick in drawn.y_ticks]
    parts += [_label("nbi-x", "left", tick.at, tick.label) for tick in drawn.x_ticks]
    # Without the style sheet it has no size: no stray picture.
    parts.append(
        '<svg viewBox="0 0 1000 1000" width="0" height="0" preserveAspectRatio="none" '
        f'aria-hidden="true"><path class="nbi-area" d="{area}"></path>'
        f'<path class="nbi-curve" d="{line}"></path></svg>'
    )
    if drawn.baseline is not None:
        parts.append(f'<span class="nbi-base" style="bottom:{100 * drawn.baseline:.2f}%"></span>')
    for x, y, number, _ in drawn.marks:
        place = f"left:{100 * x:.2f}%;top:{100 * (1 - y):.2f}%"
        parts.append(f'<span class="nbi-dot" style="{place}" data-t="{number}"></span>')
    return "".join(parts)


def _label(css: str, side: str, at: float, label: str) -> str:
    """Give a label of an axis; the style sheet writes it from the attribute."""
    return f'<span class="{css}" style="{side}:{100 * at:.2f}%" data-t="{label}"></span>'


def svg_steps(points: Sequence[tuple[float, float]]) -> str:
    """Give the path of steps in a square of 1000 x 1000, y downwards."""
    scaled = [(round(1000 * x, 1), round(1000 * (1 - y), 1)) for x, y in points]
    path = [f"M{scaled[0][0]:g} {scaled[0][1]:g}"]
    for (x, y), (_, before) in zip(scaled[1:], scaled, strict=False):
        path.append(f"H{x:g}" + (f"V{y:g}" if y != before else ""))
    return "".join(path)


def plot_columns(drawn: Columns) -> str:
    """Draw a histogram with its axes and the bands under it."""
    parts = [_label("nbi-y", "bottom", tick.at, tick.label) for tick in drawn.y_ticks]
    parts += [_label("nbi-x", "left", tick.at, escape(tick.label)) for tick in drawn.x_ticks]
    shapes = "".join(
        f'<rect class="nbi-col{_LOOKS[one.look]}" x="{1000 * one.left:.1f}" '
        f'y="{1000 * (1 - one.height):.1f}" width="{1000 * (one.right - one.left):.1f}" '
        f'height="{1000 * one.height:.1f}"></rect>'
        for one in drawn.columns
    )
    parts.append(
        '<svg viewBox="0 0 1000 1000" width="0" height="0" preserveAspectRatio="none" '
        f'aria-hidden="true">{shapes}</svg>'
    )
    return (
        f'<div class="nbi-plot nbi-hist">{"".join(parts)}</div>{"".join(map(_band, drawn.bands))}'
    )


_LOOKS = {"plain": "", "faint": " nbi-faint", "alert": " nbi-alerts"}


def _band(line: BandLine) -> str:
    pieces = "".join(
        f'<span class="{"nbi-faint" if faint else "nbi-full"}" '
        f'style="left:{100 * left:.2f}%;width:{100 * (right - left):.2f}%"></span>'
        for left, right, faint in line.pieces
    )
    return f'<div class="nbi-band" data-t="{escape(line.label)}">{pieces}</div>'
