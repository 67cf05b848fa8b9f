from __future__ import annotations

from nbinspect.render.palette import HUES, css_class, hue, kind_words

KINDS = [
    "PARAMETER",
    "BUFFER",
    "GRADIENT",
    "OPTIMIZER_STATE",
    "SAVED_FOR_BACKWARD",
    "VARIABLE",
    "OUT_HISTORY",
    "TRACEBACK",
    "HOOK",
    "DATALOADER",
    "FRAME",
    "CYCLE",
    "OTHER",
]


def test_holder_kinds_share_eight_hues_and_are_told_apart():
    looks = [HUES[kind] for kind in KINDS]
    assert len({look.fill for look in looks}) <= 8
    assert len({(look.fill, look.hatched) for look in looks}) == len(KINDS) == 13


def test_an_unknown_name_is_grey_and_no_class_of_its_own():
    assert hue("<b>").fill == hue("OTHER").fill
    assert css_class('x" onload="y') == "nbi-k-other"
    assert kind_words("OPTIMIZER_STATE") == "optimizer state"
    assert kind_words("SOMETHING") == "SOMETHING"
