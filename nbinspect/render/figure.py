"""Views drawn with matplotlib, in logical pixels, on a white card.

Only `matplotlib.figure.Figure` is used, never pyplot, and the user's rcParams are put aside while
drawing and come back as they were.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbinspect.render.format import ELLIPSIS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 900
MARGIN = 20
ROW = 21
INK = "#1f2328"
MUTED = "#5a6068"
LINE = "#d8dadd"
TINT = "#eef0f2"
ACCENT = "#0072b2"
ALERT = "#c62828"
PAPER = "#ffffff"
SANS = "DejaVu Sans"
MAX_LINE = 300
MONO = "DejaVu Sans Mono"


@contextmanager
def own_settings() -> Iterator[None]:
    """Draw with matplotlib's defaults and ours, whatever the user has set."""
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        key: value
        for key, value in mpl.rcParamsDefault.items()
        if not key.startswith(("backend", "interactive", "toolbar", "webagg", "date", "timezone"))
    }
    settings |= {
        "font.family": [SANS],
        "text.parse_math": False,  # a dollar in a name is a dollar
        "svg.fonttype": "none",
        "svg.hashsalt": "nbinspect",
        "hatch.linewidth": 1.6,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name may have letters that the font lacks
        with mpl.rc_context(settings):
            yield


class Sheet:
    """A card that is written from top to bottom and grows as it needs.

    Attributes:
        figure: the drawing; one point is one logical pixel.
        y: how far down the next thing goes.
        left: left edge of what is written.
        right: right edge of it.
    """

    def __init__(self, width: int) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.figure: Figure = Figure(figsize=(width / 72, 1), dpi=72, facecolor=PAPER)
        self.width = width
        self.y = float(MARGIN)
        self.left, self.right = float(MARGIN), float(width - MARGIN)
        self._axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
        self._axes.set_axis_off()
        self._axes.set_xlim(0, width)
        canvas: Any = FigureCanvasAgg(self.figure)
        self._measure = canvas.get_renderer()
        self._widths: dict[tuple[str, float, str, str], float] = {}

    def finish(self) -> Figure:
        """Give the drawing, as high as what was written on it."""
        height = max(self.y + MARGIN, 2 * MARGIN)
        self.figure.set_size_inches(self.width / 72, height / 72)
        self._axes.set_ylim(height, 0)
        return self.figure

    def text_width(
        self, text: str, size: float, family: str = SANS, weight: str = "normal"
    ) -> float:
        """Give the width of a line of text in logical pixels."""
        from matplotlib.font_manager import FontProperties

        key = (text, size, family, weight)
        if key not in self._widths:
            font = FontProperties(family=[family], size=size, weight=weight)
            width, _, _ = self._measure.get_text_width_height_descent(
                text or " ", font, ismath=False
            )
            self._widths[key] = float(width) if text else 0.0
        return self._widths[key]

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 13,
        color: str = INK,
        family: str = SANS,
        weight: str = "normal",
        align: str = "left",
    ) -> None:
        """Write one line, with its baseline at `y`."""
        if text:
            style: dict[str, Any] = {"family": [family], "weight": weight, "ha": align}
            self._axes.text(
                x, y, text, fontsize=size, color=color, va="baseline", zorder=6, **style
            )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *,
        hatched: bool = False,
        edge: bool = False,
        above: float = 1,
    ) -> None:
        """Fill a rectangle, with diagonal lines over it if it is `hatched`."""
        from matplotlib.patches import Rectangle

        style: dict[str, Any] = {"facecolor": fill, "linewidth": 0, "zorder": above}
        if hatched:
            style |= {"hatch": "////", "edgecolor": (1, 1, 1, 0.6)}
        self._axes.add_artist(Rectangle((x, y), width, height, **style))
        if edge:
            outline: dict[str, Any] = {"fill": False, "edgecolor": (0, 0, 0, 0.2), "linewidth": 0.8}
            self._axes.add_artist(
                Rectangle((x + 0.4, y + 0.4), width - 0.8, height - 0.8, **outline)
            )

    def image(
        self,
        pixels: Sequence[Sequence[tuple[int, int, int, int]]],
        x: float,
        y: float,
        width: float,
        height: float,
    ) -> None:
        """Draw rows of red, green, blue and opacity, each 0..255, stretched over a rectangle."""
        import numpy as np

        place: Any = (x, x + width, y + height, y)
        self._axes.imshow(
            np.asarray(pixels, np.uint8),
            extent=place,
            aspect="auto",
            interpolation="nearest",
            zorder=1,
        )
        self._axes.set_xlim(0, self.width)  # which an image changes

    def dot(self, x: float, y: float, radius: float, fill: str) -> None:
        """Fill a circle."""
        from matplotlib.patches import Circle

        self._axes.add_artist(Circle((x, y), radius, facecolor=fill, linewidth=0, zorder=5))

    def line(
        self, xs: Sequence[float], ys: Sequence[float], color: str = LINE, **style: Any
    ) -> None:
        """Draw a line through points."""
        self._axes.plot(xs, ys, color=color, clip_on=False, **{"linewidth": 1.0, **style})

    def curve(self, points: Sequence[tuple[float, float]], color: str, *, curved: bool) -> None:
        """Draw a cubic Bezier curve, or a polyline if it is not `curved`."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        code = Path.CURVE4 if curved else Path.LINETO
        path = Path(list(points), [Path.MOVETO, *[code] * (len(points) - 1)])
        style: dict[str, Any] = {"fill": False, "edgecolor": color, "linewidth": 1.1}
        self._axes.add_artist(PathPatch(path, **style))

    def polygon(self, corners: Sequence[tuple[float, float]], fill: str) -> None:
        """Fill what lies between corners."""
        from matplotlib.patches import Polygon

        self._axes.add_artist(Polygon(list(corners), facecolor=fill, linewidth=0))

    def frame(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        color: str,
        line: float = 1.0,
        dashed: bool = False,
        above: float = 3,
    ) -> None:
        """Draw a box with round corners and an outline of its own."""
        from matplotlib.patches import FancyBboxPatch

        style: dict[str, Any] = {"facecolor": fill, "edgecolor": color, "linewidth": line}
        if dashed:
            style["linestyle"] = (0, (4, 3))
        shape: Any = "round,pad=0,rounding_size=4"
        self._axes.add_artist(
            FancyBboxPatch((x, y), width, height, boxstyle=shape, zorder=above, **style)
        )

    def steps(self, xs: Sequence[float], ys: Sequence[float], bottom: float) -> None:
        """Draw steps with the area between them and `bottom`."""
        self._axes.fill_between(xs, ys, bottom, step="post", color=ACCENT, alpha=0.18, linewidth=0)
        self.line(xs, ys, ACCENT, linewidth=1.5, drawstyle="steps-post", solid_joinstyle="miter")

    def fit(
        self, text: str, room: float, size: float, family: str = SANS, *, middle: bool = False
    ) -> str:
        """Shorten text to `room` pixels, leaving out its middle or its end."""
        if len(text) > MAX_LINE:  # measuring it would take long
            text = _cut(text, MAX_LINE, middle=middle)
        if self.text_width(text, size, family) <= room:
            return text
        low, high = 1, len(text)
        while low < high - 1:
            keep = (low + high) // 2
            if self.text_width(_cut(text, keep, middle=middle), size, family) <= room:
                low = keep
            else:
                high = keep
        return _cut(text, low, middle=middle)

    def wrapped(self, text: str, room: float, size: float, weight: str = "normal") -> list[str]:
        """Break text into lines of at most `room` pixels."""
        lines, line = [], ""
        for word in text.split(" "):
            longer = f"{line} {word}" if line else word
            if line and self.text_width(longer, size, weight=weight) > room:
                lines.append(line)
                line = word
            else:
                line = longer
        return [self.fit(line, room, size) for line in [*lines, line]]


def _cut(text: str, keep: int, *, middle: bool) -> str:
    """Keep `keep` characters of text around an ellipsis."""
    n_tail = keep * 3 // 5 if middle else 0
    return text[: keep - n_tail] + ELLIPSIS + (text[-n_tail:] if n_tail else "")
