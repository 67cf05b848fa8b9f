from __future__ import annotations

import base64
import io
import re
import time
from dataclasses import replace
from html.parser import HTMLParser

from made_up_graphs import chain
from made_up_views import report, sawtooth, snapshot
from PIL import Image

from nbinspect.blocks import (
    Advice,
    Bar,
    Column,
    Fold,
    HeatMap,
    HeatScale,
    Segment,
    Size,
    Table,
    Text,
    Unavailable,
)
from nbinspect.render.html import to_html
from nbinspect.render.style import style_sheet

VOID = {"br", "img", "wbr"}


class Tree(HTMLParser):
    """Checks that tags nest, and collects them and what a page without styles shows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


def test_it_is_one_fragment_and_loads_nothing():
    for view in (snapshot(), report()):
        page = to_html(view)
        tree = Tree(page)
        assert tree.tags[0] == ("div", {"class": "nbi"})
        assert page.startswith("<div")
        assert page.endswith("</div>")
        assert "http" not in page
        assert "@import" not in page
        assert "url(" not in page
        assert not [tag for tag, _ in tree.tags if tag in ("script", "link", "iframe", "object")]
        assert not [attrs for _, attrs in tree.tags if "id" in attrs]  # ids would clash on a page


def test_every_rule_of_the_style_sheet_is_scoped():
    rules = re.sub(r"@\w+[^{]*\{", "", style_sheet())
    selectors = re.findall(r"([^{}]+)\{[^{}]*\}", rules)
    assert len(selectors) > 40
    assert all(part.strip().startswith(".nbi") for group in selectors for part in group.split(","))


def test_no_label_is_smaller_than_11_pixels():
    sizes = [
        float(size) for size in re.findall(r"font(?:-size)?:(?:\d+ )?([\d.]+)px", style_sheet())
    ]
    assert len(sizes) > 5
    assert min(sizes) >= 11
    assert 12 * float(re.search(r"font-size:(\.\d+)em", style_sheet())[1]) >= 11


def test_exact_bytes_are_on_hover():
    page = to_html((Text(("It is ", Size(4 * 1024**2), ".")),))
    assert '<span class="nbi-n" title="4\u202f194\u202f304 bytes">4.00\u00a0MiB</span>' in page


def test_bars_are_sized_in_percent_and_carry_numbers():
    parts = (Segment("a", 3072, "PARAMETER"), Segment("b", 0, "BUFFER"), Segment("f", 1024, "FREE"))
    tree = Tree(to_html((Bar("cpu", parts, 4096),)))
    drawn = [attrs for _, attrs in tree.tags if "nbi-seg" in (attrs.get("class") or "")]
    assert [attrs["style"] for attrs in drawn] == ["width:75.000%"]
    assert drawn[0]["title"] == "a: 3\u202f072 bytes"
    assert [word for word in tree.words if "B" in word] == [
        "3.00 KiB of 4.00 KiB",
        "3.00\u00a0KiB",
        "0\u00a0B",
        "1.00\u00a0KiB",
    ]
    track = next(attrs for _, attrs in tree.tags if attrs.get("class") == "nbi-track")
    assert track["aria-label"] == "cpu: 3.00 KiB of 4.00 KiB: a 3.00 KiB, b 0 B, f 1.00 KiB"


def test_long_names_are_cut_in_the_middle_and_whole_on_hover():
    name = "model." + "layer." * 20 + "weight"
    tree = Tree(to_html((Table((Column("Name", "name"),), ((name,),)),)))
    code = next(attrs for tag, attrs in tree.tags if tag == "code")
    assert code["title"] == name
    shown = "".join(tree.words)
    assert shown.startswith("Namemodel.")
    assert shown.endswith("weight")
    assert "…" in shown


def test_without_styles_the_image_and_the_tables_are_left():
    page = to_html(report())
    bare = Tree(re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL))
    images = [attrs for tag, attrs in bare.tags if tag == "img"]
    assert len(images) == 1
    assert "4.10 GiB" in images[0]["alt"]
    data = base64.b64decode(images[0]["src"].removeprefix("data:image/png;base64,"))
    picture = Image.open(io.BytesIO(data))
    assert picture.size[0] == 2 * 720
    assert len(data) < 25_000
    # Labels inside pictures come from the style sheet: none is left behind as a stray word.
    assert not [word for word in bare.words if word in ("5.00 GiB", "4 s")]
    empty = [attrs for tag, attrs in bare.tags if tag == "svg"]
    assert [(svg["width"], svg["height"]) for svg in empty] == [("0", "0")]
    assert "optimizer.step()" in bare.words


def test_a_view_without_pictures_draws_none():
    assert "<img" not in to_html((Text(("a",)), Table((Column("Name"),), (("b",),))))


def test_empty_and_missing_are_said():
    page = to_html((Table((Column("Name"),), (), "Holders"), Bar("cpu", ())))
    assert ">nothing</p>" in page
    assert "<strong" in page
    missing = to_html((Table((Column("Size", "bytes"),), ((Unavailable("no NVML"),), (None,))),))
    assert "not known: no NVML" in missing
    assert "0 B" not in missing


def test_advice_gives_the_line_to_copy_whole():
    code = "x = " + " + ".join(f"tensor_{i}" for i in range(40))
    page = to_html((Advice(("Too much.",), code, 1024), Fold("more", (Text(("in",)),))))
    assert f'<code class="nbi-mend">{code}</code>' in page
    assert "<details" in page
    assert "<summary>more</summary>" in page


def test_ten_rows_are_written_in_a_few_milliseconds():
    tables = tuple(block for block in snapshot() if not isinstance(block, Bar))
    to_html(tables)
    started = time.process_time()
    for _ in range(20):
        to_html(tables)
    assert (time.process_time() - started) / 20 < 0.03


def test_a_long_timeline_stays_a_small_page():
    assert len(to_html((sawtooth(100_000),))) < 80_000


def test_what_a_scale_shows_is_apart_without_styles():
    scale = HeatScale("saved for backward", "0 B", "8.08 MiB", "SAVED_FOR_BACKWARD")
    graph = replace(chain(), scale=scale)
    shades = HeatMap("Norms", ("fc",), ((0.0, 1.0),), 0.0, 1.0, "0.018", "11.2", "step 0", "step 1")
    words = re.sub(r"<style>.*?</style>|<[^>]+>", "", to_html((graph, shades)), flags=re.DOTALL)
    assert "saved for backward: 0 B to 8.08 MiB" in words
    assert "0.018 to 11.2" in words


def test_an_empty_name_is_no_empty_box_of_code():
    table = Table((Column("allocated by", "name"), Column("in", "name")), (("fc", ""),))
    assert re.findall(r"<code[^>]*>(.*?)</code>", to_html((table,))) == ["fc"]
