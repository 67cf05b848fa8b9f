from __future__ import annotations

import pytest
from made_up_views import labelled, report, snapshot

from nbinspect.blocks import Advice, Bar, Column, Fold, Segment, Table, Text, Timeline, Unavailable
from nbinspect.render.format import text_width
from nbinspect.render.text import to_text


@pytest.mark.parametrize("width", [40, 60, 88, 140])
@pytest.mark.parametrize("view", [snapshot(), report(), labelled("模型 " * 30)])
def test_lines_keep_the_width_and_code_to_copy_is_whole(view, width):
    codes = [block.code for block in view if isinstance(block, Advice) and block.code]
    lines = to_text(view, width).splitlines()
    for code in codes:
        assert any(line.strip() == code.strip() for line in lines)
    assert all(
        text_width(line) <= width for line in lines if line.strip() not in map(str.strip, codes)
    )


def test_numbers_stand_at_the_right_edge_of_their_column():
    table = Table(
        (Column("Name", "name"), Column("Size", "bytes")), (("模型", 1024), ("a" * 90, 900))
    )
    lines = to_text((table,), 60).splitlines()
    assert {text_width(line) for line in lines} == {60}
    assert lines[-1].endswith("  900 B")
    assert "…" in lines[-1]


def test_each_part_of_a_bar_has_number_share_and_length():
    bar = Bar("cpu", (Segment("a", 3072, "PARAMETER"), Segment("free", 1024, "FREE")), 4096)
    head, used, free = to_text((bar,)).splitlines()
    assert head == "cpu: 3.00 KiB of 4.00 KiB"
    assert used.split() == ["a", "3.00", "KiB", "75", "%", "█" * 24]
    assert free.split() == ["free", "1.00", "KiB", "25", "%", "░" * 8]


def test_a_sliver_is_seen():
    bar = Bar("cpu", (Segment("big", 10**9, "PARAMETER"), Segment("small", 1, "BUFFER")))
    assert to_text((bar,)).endswith("▏")


def test_a_missing_reading_is_its_reason():
    table = Table((Column("Size", "bytes"),), ((Unavailable("NVML is not there"),),))
    assert "not known: NVML is not there" in to_text((table,))


def test_empty_blocks_say_so():
    assert to_text(()) == ""
    assert "nothing" in to_text((Table((Column("Name"),), (), "Holders"),))
    assert "nothing was recorded" in to_text((Timeline("cpu", (), ()),))
    assert to_text((Bar("cpu", ()),)) == "cpu: 0 B"


def test_a_short_fold_is_open_and_a_long_one_is_its_title():
    short = Fold("two lines", (Text(("inside",)),))
    long = Fold("many lines", tuple(Text((f"inside {i}",)) for i in range(9)))
    assert to_text((short,)) == "- two lines\n  inside"
    assert to_text((long,)) == "+ many lines"


def test_what_needs_action_is_marked_without_colour():
    assert to_text((Text(("out of memory",), "action"),)) == "! out of memory"
