"""Numbers and names as people read them; every renderer spells them alike.

Text that comes from the user's program is made safe here, once: `printable` spells control
characters, direction marks and broken surrogates out, so that no renderer ever sees them.
"""

from __future__ import annotations

import math
import unicodedata

TIME_UNITS = (
    (1e-3, 1e6, "µs"),
    (1.0, 1e3, "ms"),
    (180.0, 1.0, "s"),
    (10_800.0, 1 / 60, "min"),
    (math.inf, 1 / 3600, "h"),
)
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
ELLIPSIS = "…"
MINUS = "\u2212"
THIN_SPACE = "\u202f"


def bytes_text(n_bytes: int, *, signed: bool = False) -> str:
    """Give a number of bytes in binary units with three figures: ``4.00 MiB``.

    Args:
        n_bytes: the number; below zero for what went away.
        signed: put a plus before what is above zero, as differences want.
    """
    sign = MINUS if n_bytes < 0 else "+" if signed and n_bytes > 0 else ""
    size, unit = float(abs(n_bytes)), 0
    # 1023.6 KiB would print as 1024 KiB: such a number belongs to the next unit.
    while size >= (1024 if unit == 0 else 1023.5) and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    decimals = 0 if unit == 0 or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{sign}{size:.{decimals}f} {UNITS[unit]}"


def exact_bytes(n_bytes: int) -> str:
    """Give every digit of a number of bytes: ``4 194 304 bytes``, with thin spaces."""
    return f"{count(n_bytes)} {'byte' if abs(n_bytes) == 1 else 'bytes'}"


def count(number: int) -> str:
    """Give an integer with thin spaces between its thousands."""
    return f"{number:,}".replace(",", THIN_SPACE).replace("-", MINUS)


def many(number: int, noun: str, plural: str = "") -> str:
    """Give a number of things: ``1 operation``, ``2 operations``, ``2 backward passes``."""
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def plain_number(value: float) -> str:
    """Give a number that has no unit, with four figures: ``0.001``, ``35 449``, ``4.8e5``."""
    return count(value) if isinstance(value, int) else figures(value, 4)


def figures(value: float, n: int) -> str:
    """Give a number with so many figures, or all before the point where that reads more easily."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{MINUS * (value < 0)}Inf"
    if 10**n <= abs(value) < 1e6:
        return count(round(value))
    mantissa, power, exponent = f"{value:.{n}g}".partition("e")
    return f"{mantissa}{power}{int(exponent) if power else ''}".replace("-", MINUS)


def percent(fraction: float) -> str:
    """Give a fraction 0..1 as a percentage; what is not nothing never reads as 0 %."""
    if not math.isfinite(fraction):
        return f"{fraction} %"
    value = 100 * abs(fraction)
    sign = MINUS if fraction < 0 else ""
    if 0 < value < 0.1:
        return f"{sign}<0.1 %"
    return f"{sign}{value:.{1 if 0 < value < 9.95 else 0}f} %"


def seconds(time_s: float) -> str:
    """Give a time with the unit that suits it: ``320 ms``, ``2.5 s``, ``3 min``."""
    if time_s <= 0:
        return "0 s"
    scale, unit = next((scale, unit) for limit, scale, unit in TIME_UNITS if time_s < limit)
    return f"{time_s * scale:.3g} {unit}"


def printable(text: str) -> str:
    r"""Spell out what cannot be printed: a newline as ``\n``, a direction mark as ``\u202e``.

    What is left is one line that no terminal, HTML page or XML file takes for a command.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_printable_char(char) for char in text)


def _printable_char(char: str) -> str:
    if char.isprintable():
        return char
    return " " if unicodedata.category(char) == "Zs" else repr(char)[1:-1]


def char_width(char: str) -> int:
    """Give the columns that a printable character takes in a terminal: 0, 1 or 2."""
    if unicodedata.category(char) in ("Mn", "Me") or "\u1160" <= char <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def text_width(text: str) -> int:
    """Give the columns that printable text takes in a terminal."""
    return len(text) if text.isascii() else sum(map(char_width, text))


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Fill text with spaces up to `width` columns, on its left if it is `right`-aligned."""
    spaces = " " * (width - text_width(text))
    return spaces + text if right else text + spaces


def cut_end(text: str, width: int) -> str:
    """Shorten to `width` columns by leaving out the end, as suits a line of code."""
    text = printable(text)
    return text if text_width(text) <= width else _head(text, width - 1) + ELLIPSIS


def cut_middle(text: str, width: int) -> str:
    """Shorten to `width` columns by leaving out the middle, as suits a name.

    The tail is given the larger part: names that begin alike differ there.
    """
    text = printable(text)
    if text_width(text) <= width:
        return text
    n_tail = (width - 1) * 3 // 5
    tail = _head(text[::-1], n_tail)[::-1]
    return _head(text, width - 1 - text_width(tail)) + ELLIPSIS + tail


def _head(text: str, width: int) -> str:
    """Give the longest beginning of text that takes at most `width` columns."""
    used = 0
    for at, char in enumerate(text):
        used += char_width(char)
        if used > width:
            return text[:at]
    return text


def wrap(text: str, width: int) -> list[str]:
    """Break printable text into lines of at most `width` columns, between words where it can."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if text_width(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        while text_width(word) > width:
            head = _head(word, width) or word[0]
            lines.append(head)
            word = word[len(head) :]
        line = word
    return [*lines, line] if line or not lines else lines
