"""What text, HTML and pictures share of heat maps: shades from 0 to 1, and fewer columns."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Sequence

from nbinspect.blocks import HeatMap
from nbinspect.render.figure import ACCENT, ALERT
from nbinspect.render.format import printable

LIGHTEST = 0.06  # of the accent, so that a small number is not taken for none


def heat_share(block: HeatMap, value: float) -> float:
    """Say how far a number is between the ends of the scale, 0 to 1."""
    if block.high <= block.low:
        return 1.0
    return min(1.0, max(0.0, (value - block.low) / (block.high - block.low)))


def heat_has_bad(block: HeatMap) -> bool:
    """Say whether there is a NaN, which the legend then explains."""
    return any(one is not None and math.isnan(one) for row in block.values for one in row)


def squeezed(values: Sequence[float | None], most: int) -> list[float | None]:
    """Give at most so many values, each the largest of some, or NaN if one of them is."""
    if len(values) <= most:
        return list(values)
    edges = [round(n * len(values) / most) for n in range(most + 1)]
    return [_largest(values[a:b]) for a, b in itertools.pairwise(edges)]


def _largest(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    if any(map(math.isnan, known)):
        return math.nan
    return max(known, default=None)


def heat_words(block: HeatMap) -> str:
    """Say a heat map in a sentence, for who cannot see it."""
    n_columns = max(map(len, block.values), default=0)
    words = (
        f"{block.title}: {len(block.labels)} rows from {block.first} to {block.last}, "
        f"{n_columns} columns, shades from {block.low_text} to {block.high_text}"
    )
    return printable(words)


def heat_pixels(block: HeatMap) -> list[list[tuple[int, int, int, int]]]:
    """Give one pixel for each value: the accent, the more opaque the larger; red for NaN."""
    return [[_pixel(block, one) for one in row] for row in block.values]


def _pixel(block: HeatMap, value: float | None) -> tuple[int, int, int, int]:
    if value is None:
        return (0, 0, 0, 0)
    if math.isnan(value):
        return (*bytes.fromhex(ALERT[1:]), 255)
    share = LIGHTEST + (1 - LIGHTEST) * heat_share(block, value)
    return (*bytes.fromhex(ACCENT[1:]), round(255 * share))


def heat_png(block: HeatMap) -> bytes:
    """Encode the shades as a small transparent picture, right on light and on dark paper."""
    from PIL import Image

    rows = heat_pixels(block)
    image = Image.new("RGBA", (len(rows[0]), len(rows)))
    image.putdata([pixel for row in rows for pixel in row])
    packed = io.BytesIO()
    image.save(packed, "png", optimize=True)
    return packed.getvalue()
