"""Views as PNG pictures: an opaque white card, sharp on screens with two dots a pixel."""

from __future__ import annotations

import functools
import io
import math
from typing import TYPE_CHECKING, Any

from nbinspect.blocks import Bar, Graph, Histogram, Timeline, View
from nbinspect.render.figure import ACCENT, ALERT, INK, LINE, MARGIN, MUTED, PAPER, TINT, WIDTH
from nbinspect.render.palette import HUES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALE = 2
PICTURES_WIDTH = 720


def to_png(view: View, width: int = WIDTH) -> bytes:
    """Render a view as a picture of `width` logical pixels, at twice that resolution."""
    from nbinspect.render.draw import figure
    from nbinspect.render.figure import own_settings

    with own_settings():
        return _encode(figure(view, width))


def pictures_to_png(view: View) -> bytes:
    """Render only what is a picture: bars, timelines, histograms and graphs."""
    pictures = tuple(
        block for block in view if isinstance(block, Bar | Timeline | Histogram | Graph)
    )
    return to_png(pictures, pictures_width(view))


def pictures_width(view: View) -> int:
    """Give the logical width of the pictures of a view; labels of a wide graph need more."""
    from nbinspect.render.picture import placed

    graphs = [placed(block).width for block in view if isinstance(block, Graph) and block.nodes]
    return max([PICTURES_WIDTH, *(math.ceil(width) + 2 * MARGIN for width in graphs)])


def _encode(figure: Figure) -> bytes:
    """Draw and pack: every picture has the same few colours, so one byte a dot is enough."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure.set_dpi(72 * SCALE)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    size = canvas.get_width_height()
    image = Image.frombuffer("RGBA", size, bytes(canvas.buffer_rgba())).convert("RGB")
    palette = Image.new("P", (1, 1))
    palette.putpalette(_colors())
    packed_image = image.quantize(palette=palette, dither=Image.Dither.NONE)
    packed = io.BytesIO()
    packed_image.save(packed, "png", optimize=True)
    return packed.getvalue()


@functools.cache
def _colors() -> bytes:
    """Give the palette: each colour, its way to white (soft edges, hatches) and to black."""
    inks = [INK, MUTED, ACCENT, ALERT]
    fills = sorted({look.fill for look in HUES.values()})
    mixes = [(color, PAPER, step / 10) for color in inks for step in range(11)]
    mixes += [(color, PAPER, step / 5) for color in fills for step in range(5)]
    mixes += [(color, "#000000", step / 10) for color in fills for step in (1, 2)]
    mixes += [(color, PAPER, step / 2) for color in (LINE, TINT) for step in range(2)]
    return b"".join(dict.fromkeys(_mix(*mix) for mix in mixes))


def _mix(color: str, other: str, share: float) -> bytes:
    """Mix two ``#rrggbb`` colours."""
    pairs = zip(bytes.fromhex(color[1:]), bytes.fromhex(other[1:]), strict=True)
    return bytes(round(a + (b - a) * share) for a, b in pairs)
