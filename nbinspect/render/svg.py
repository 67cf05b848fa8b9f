"""Views as one self-contained SVG picture on a white card, with its text as text."""

from __future__ import annotations

import io
import re
from typing import Any

from nbinspect.blocks import View
from nbinspect.render.figure import MONO, SANS, own_settings

# Verdana has the widths of DejaVu Sans, so that lines end where they were measured to end.
FONTS = {
    SANS: "'DejaVu Sans', Verdana, sans-serif",
    MONO: "'DejaVu Sans Mono', Menlo, Consolas, monospace",
}
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def to_svg(view: View) -> str:
    """Render a view as SVG; the same view gives the same text, byte for byte."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    from nbinspect.render.draw import figure

    written = io.StringIO()
    with own_settings():
        canvas: Any = FigureCanvasSVG(figure(view))
        canvas.print_svg(written, metadata=NO_METADATA)
    return _tidy(written.getvalue())


def _tidy(svg: str) -> str:
    """Leave out the prologue and the comments, count in pixels, and name more fonts.

    Every pattern starts at a ``<``, which no label can hold: labels stay as they are.
    """
    svg = re.sub(r"<!--.*?-->\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"<svg[^>]*>", lambda tag: tag[0].replace('pt"', '"'), svg, count=1)
    svg = re.sub(r"<path[^>]*>", lambda tag: re.sub(r"(\.\d)\d+", r"\1", tag[0]), svg)
    return re.sub(r"<text[^>]*>", lambda tag: _name_fonts(tag[0]), svg)


def _name_fonts(tag: str) -> str:
    for family, fonts in FONTS.items():
        tag = tag.replace(f"'{family}'", fonts)
    return tag
