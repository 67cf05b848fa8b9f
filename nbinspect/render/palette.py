"""Colours: the same hue for the same holder kind in every picture.

The hues are Okabe and Ito's, which people with any common colour blindness tell apart. Two
kinds that belong together share a hue; the second has a hatch. Colour is never the only signal:
whatever is coloured has its name and its number beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

GREY = "#8c8c8c"
SLATE = "#5b7083"


@dataclass(frozen=True, slots=True)
class Hue:
    """How a part of a bar is filled.

    Attributes:
        fill: colour, as ``#rrggbb``.
        hatched: drawn with diagonal lines, to tell it from the other kind of the same colour.
        words: what it is called in prose, e.g. ``optimizer state``.
        empty: it is room that is left, not something that is there.
    """

    fill: str
    hatched: bool
    words: str
    empty: bool = False


HUES: dict[str, Hue] = {
    "PARAMETER": Hue("#0072b2", False, "parameters"),
    "BUFFER": Hue("#0072b2", True, "buffers"),
    "GRADIENT": Hue("#e69f00", False, "gradients"),
    "OPTIMIZER_STATE": Hue("#009e73", False, "optimizer state"),
    "SAVED_FOR_BACKWARD": Hue("#cc79a7", False, "saved for backward"),
    "HOOK": Hue("#cc79a7", True, "hooks"),
    "DATALOADER": Hue("#009e73", True, "data loader"),
    "VARIABLE": Hue("#56b4e9", False, "variables"),
    "OUT_HISTORY": Hue("#f0e442", False, "Out history"),
    "TRACEBACK": Hue("#d55e00", False, "exception"),
    "FRAME": Hue("#56b4e9", True, "frames"),
    "CYCLE": Hue("#d55e00", True, "cycles"),
    "OTHER": Hue(GREY, False, "other"),
    "UNTRACKED": Hue(GREY, True, "not found"),
    "ALLOCATED": Hue(SLATE, False, "tensors"),
    "PROCESS": Hue(SLATE, False, "this process"),
    "CACHED": Hue(SLATE, True, "cached"),
    "OTHERS": Hue(GREY, False, "others"),
    "FREE": Hue("#cccccc", False, "free", empty=True),
}


def hue(name: str) -> Hue:
    """Give the look of a holder kind or of another part of a bar; grey for unknown names."""
    return HUES.get(name) or Hue(GREY, False, name)


def kind_words(name: str) -> str:
    """Give a holder kind in prose: ``optimizer state`` for ``OPTIMIZER_STATE``."""
    return hue(name).words


def css_class(name: str) -> str:
    """Give the class that colours a part; an unknown name is user data and never a class."""
    return f"nbi-k-{name.lower().replace('_', '-')}" if name in HUES else "nbi-k-other"
