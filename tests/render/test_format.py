from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbinspect.render.format import (
    bytes_text,
    count,
    cut_end,
    cut_middle,
    exact_bytes,
    many,
    pad,
    percent,
    plain_number,
    printable,
    seconds,
    text_width,
    wrap,
)

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * 1024, "10.0 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (4 * 1024**2, "4.00 MiB"),
        (100 * 1024**3, "100 GiB"),
        (16 * 1024**6, "16.0 EiB"),
        (5000 * 1024**6, "5000 EiB"),
        (-4 * 1024**2, "\u22124.00 MiB"),
    ],
)
def test_bytes_read_in_binary_units_with_three_figures(n_bytes, text):
    assert bytes_text(n_bytes) == text


def test_differences_carry_their_sign():
    assert [bytes_text(n, signed=True) for n in (-1, 0, 2048)] == ["\u22121 B", "0 B", "+2.00 KiB"]


@given(st.integers(0, 16 * 1024**6))
def test_bytes_are_right_to_three_figures(n_bytes):
    number, unit = bytes_text(n_bytes).split(" ")
    value = float(number) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit)
    assert abs(value - n_bytes) <= 0.0051 * n_bytes
    assert len(re.sub(r"\D", "", number)) <= 4


def test_exact_numbers_have_thin_spaces():
    assert exact_bytes(4194304) == "4\u202f194\u202f304 bytes"
    assert exact_bytes(1) == "1 byte"
    assert count(-1234) == "\u22121\u202f234"


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0, "0 %"),
        (1e-6, "<0.1 %"),
        (0.001, "0.1 %"),
        (0.0334, "3.3 %"),
        (0.334, "33 %"),
        (1, "100 %"),
        (-0.5, "\u221250 %"),
        (float("nan"), "nan %"),
    ],
)
def test_percent_never_says_0_of_what_is_there(fraction, text):
    assert percent(fraction) == text


def test_times_and_plain_numbers():
    times = [0, 2e-6, 0.32, 4.2, 600, 10_800]
    assert [seconds(t) for t in times] == ["0 s", "2 µs", "320 ms", "4.2 s", "10 min", "3 h"]
    numbers = {
        12_345: "12\u202f345",
        35_449.2: "35\u202f449",
        -3.545e7: "\u22123.545e7",
        0.123456: "0.1235",
        -0.0000481: "\u22124.81e\u22125",
        -2.5: "\u22122.5",
        float("inf"): "Inf",
        -float("inf"): "\u2212Inf",
        float("nan"): "NaN",
    }
    assert [plain_number(n) for n in numbers] == [*numbers.values()]


def test_a_number_of_things_agrees_with_its_noun():
    assert [many(n, "call") for n in (0, 1, 2, 1200)] == [
        "0 calls",
        "1 call",
        "2 calls",
        "1\u202f200 calls",
    ]
    assert many(1, "backward pass", "backward passes") == "1 backward pass"
    assert many(3, "backward pass", "backward passes") == "3 backward passes"


def test_what_cannot_be_printed_is_spelled_out():
    hostile = "a\nb\x1b[31m\u202ec\udc80\x00\xa0d"
    assert printable(hostile) == r"a\nb\x1b[31m\u202ec\udc80\x00 d"


@given(ANY_TEXT)
def test_printable_text_is_one_line_that_can_be_encoded(text):
    assert printable(text).isprintable()
    printable(text).encode("utf-8")
    assert printable(printable(text)) == printable(text)


def test_names_are_cut_in_the_middle_and_code_at_the_end():
    name = "optimizer.state[model.transformer.h.11.attn.c_attn.weight]['exp_avg_sq']"
    assert cut_middle(name, 30) == "optimizer.st…ht]['exp_avg_sq']"
    assert cut_end("loss.backward(retain_graph=True)", 14) == "loss.backward…"
    assert cut_middle("short", 5) == cut_end("short", 5) == "short"


@given(ANY_TEXT, st.integers(1, 40))
def test_cut_and_wrapped_text_keeps_its_width(text, width):
    for cut in (cut_middle, cut_end):
        assert text_width(cut(text, width)) <= width
        assert text_width(pad(cut(text, width), width)) == width
    lines = wrap(printable(text), max(width, 2))
    assert all(text_width(line) <= max(width, 2) for line in lines)
    assert "".join(lines).replace(" ", "") == printable(text).replace(" ", "")


def test_wide_and_combining_letters_are_measured_in_columns():
    assert text_width("模型") == 4
    assert text_width("e\u0301") == 1
    assert cut_end("模型参数", 5) == "模型…"
