"""No label, whatever is in it, becomes markup, breaks a line or stops a renderer."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_views import labelled

from nbinspect.blocks import Column, Table
from nbinspect.render.format import printable, text_width
from nbinspect.render.html import to_html
from nbinspect.render.png import to_png
from nbinspect.render.svg import to_svg
from nbinspect.render.text import to_text

HOSTILE = [
    "<script>alert(1)</script>",
    "</style></details></div><img src=x onerror=alert(1)>",
    "\" onmouseover='alert(1)' x=\"",
    "&lt;&amp;&#0;&",
    "]]>--><!--",
    "$\\frac{1}{0$ $$ \\unknown{",
    "two\nlines\r\ttab",
    "\x1b[31mred\x1b[0m\x07\x08\x00",
    "\u202eright to left\u2066\u200f",
    "lone \ud800 and \udfff",
    "\ufffe\uffff\U0010ffff",
    "e" + "\u0301" * 50,
    "\u0301",
    "👩\u200d👩\u200d👧 模型 שלום",
    '<path d="0.12345"/> style="font: \'DejaVu Sans\'"',
    "%s {x} {0} %",
    "x" * 5000,
    " ",
]
PIECES = st.sampled_from(HOSTILE[:-2]) | st.text(st.characters(exclude_categories=()), max_size=20)
LABELS = st.lists(PIECES, min_size=1, max_size=3).map("".join).filter(bool)


def harmless(label: str) -> str:
    """Give a plain label as wide; marks that combine take no column, yet are no empty label."""
    return "a" * max(1, text_width(printable(label)))


class Skeleton(HTMLParser):
    """The elements and attribute names of a page, and its words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.words += [value or "" for name, value in attrs if name in ("title", "aria-label")]
        if tag != "wbr":  # a long name may break there
            self.elements.append((tag, tuple(name for name, _ in attrs)))

    def handle_endtag(self, tag):
        self.elements.append((f"/{tag}", ()))

    def handle_data(self, data):
        self.words.append(data)

    def handle_comment(self, data):
        raise AssertionError(data)

    handle_decl = unknown_decl = handle_pi = handle_comment


def check_html(label: str) -> None:
    page = Skeleton(to_html(labelled(label)))
    assert page.elements == Skeleton(to_html(labelled(harmless(label)))).elements
    assert printable(label) in page.words


def check_text(label: str) -> None:
    written = to_text(labelled(label), 88)
    assert all(char == "\n" or char == "\u202f" or char.isprintable() for char in written)
    plain = to_text(labelled(harmless(label)), 88)
    if " " not in printable(label):  # else lines may break elsewhere
        assert abs(len(written.splitlines()) - len(plain.splitlines())) <= 20
    table = Table((Column("Name", "name"), Column("Size", "bytes")), ((label, 1), ("b", 2)))
    assert len({text_width(line) for line in to_text((table,), 60).splitlines()}) == 1


def svg_skeleton(svg: str) -> set[tuple[str, str]]:
    return {
        (node.tag.rpartition("}")[2], name.rpartition("}")[2])
        for node in ET.fromstring(svg).iter()
        for name in ["", *node.attrib]
    }


HARMLESS_SVG = svg_skeleton(to_svg(labelled("label")))


def check_svg(label: str) -> None:
    svg = to_svg(labelled(label))
    assert svg_skeleton(svg) == HARMLESS_SVG
    words = "".join(ET.fromstring(svg).itertext())
    start = printable(label).strip()[:8]
    assert start in words


@pytest.mark.parametrize("label", HOSTILE, ids=range(len(HOSTILE)))
def test_known_attacks(label):
    check_html(label)
    check_text(label)
    check_svg(label)
    assert to_png(labelled(label)).startswith(b"\x89PNG")


@given(LABELS)
@settings(max_examples=60)
def test_any_label_in_text(label):
    check_text(label)


@given(LABELS)
@settings(max_examples=25)
def test_any_label_in_html(label):
    check_html(label)


@given(LABELS)
@settings(max_examples=25)
def test_any_label_in_svg(label):
    check_svg(label)
