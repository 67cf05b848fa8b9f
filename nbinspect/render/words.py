"""Sentences and pictures in words: for terminals, drawings and screen readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from nbinspect.blocks import Bar, Code, Histogram, Size, Span, Timeline
from nbinspect.render.cells import bar_total
from nbinspect.render.format import bytes_text, percent, printable, seconds


def spans_text(spans: Sequence[Span], quote: str = "`") -> str:
    """Give a sentence without its formatting; names stand between quotes."""
    return "".join(_span(span, quote) for span in spans)


def _span(span: Span, quote: str) -> str:
    match span:
        case Code(text):
            return f"{quote}{printable(text)}{quote}"
        case Size(n_bytes):
            return bytes_text(n_bytes)
        case str():
            return printable(span)
        case _:
            assert_never(span)


def bar_words(block: Bar) -> str:
    """Say a bar in a sentence, for who cannot see it."""
    parts = ", ".join(f"{s.label} {bytes_text(s.size_bytes)}" for s in block.segments)
    return printable(f"{block.label}: {bar_total(block).text}: {parts or 'nothing'}")


def timeline_words(block: Timeline) -> str:
    """Say a timeline in a sentence, for who cannot see it."""
    if not block.sizes_bytes:
        return printable(f"{block.title}: nothing was recorded")
    low, high = bytes_text(min(block.sizes_bytes)), bytes_text(max(block.sizes_bytes))
    time = seconds(block.times_s[-1] - block.times_s[0])
    marks = [f"{m.label} {bytes_text(m.size_bytes)} at {seconds(m.time_s)}" for m in block.marks]
    return printable("; ".join([f"{block.title}: from {low} to {high} in {time}", *marks]))


def histogram_words(block: Histogram) -> str:
    """Say a histogram in a sentence, for who cannot see it."""
    total = sum(block.counts)
    if not total:
        return printable(f"{block.title}: no values")
    parts = []
    for band in dict.fromkeys(band.label for band in block.bands):
        inside = sum(
            n
            for at, n in enumerate(block.counts, start=block.start)
            if any(b.label == band and not b.faint and b.start <= at < b.end for b in block.bands)
        )
        parts.append(f"{percent(inside / total)} in {band}")
    return printable("; ".join([block.title, *parts]))
