from __future__ import annotations

import io
import subprocess
import sys
import xml.etree.ElementTree as ET

import matplotlib as mpl
from made_up_views import report, sawtooth, snapshot
from PIL import Image

from nbinspect.blocks import Bar, Segment, Text
from nbinspect.render.palette import HUES
from nbinspect.render.png import to_png
from nbinspect.render.svg import to_svg


def test_the_png_is_an_opaque_white_card_at_twice_its_size():
    picture = Image.open(io.BytesIO(to_png(snapshot())))
    assert picture.size[0] == 1800
    colors = picture.convert("RGBA")
    assert colors.getextrema()[3] == (255, 255)
    assert [colors.getpixel(at)[:3] for at in ((0, 0), (1799, picture.size[1] - 1))] == [
        (255,) * 3
    ] * 2


def test_colours_in_the_png_are_the_palette_s_own():
    solid = {name: look for name, look in HUES.items() if not look.hatched and not look.empty}
    for name, look in solid.items():
        bar = Bar("x", (Segment("all", 1, name),))
        colors = Image.open(io.BytesIO(to_png((bar,)))).convert("RGB").getcolors(1 << 16)
        most = max((n, rgb) for n, rgb in colors if rgb != (255, 255, 255))[1]
        assert "#{:02x}{:02x}{:02x}".format(*most) == look.fill, name


def test_the_svg_is_the_same_every_time_and_has_its_text_as_text():
    svg = to_svg(report())
    assert svg == to_svg(report())
    root = ET.fromstring(svg)
    words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "Lines that allocated" in words
    assert "4.10 GiB at 3.15 s" in words
    assert "date" not in svg.lower()
    assert "<metadata" not in svg


def test_a_long_timeline_stays_a_small_picture():
    view = (sawtooth(100_000),)
    assert len(to_svg(view)) < 100_000
    assert len(to_png(view)) < 40_000


def test_an_empty_view_is_an_empty_card():
    assert Image.open(io.BytesIO(to_png(()))).size == (1800, 80)


def test_the_user_s_settings_neither_change_nor_matter():
    plain = to_svg(report()), to_png(report())
    with mpl.rc_context(
        {"font.size": 40, "text.usetex": True, "svg.fonttype": "path", "axes.linewidth": 9}
    ):
        before = mpl.rcParams.copy()
        assert (to_svg(report()), to_png(report())) == plain
        assert mpl.rcParams.copy() == before


def test_dollars_are_dollars():
    assert "$x^2$ and $\\frac{" in to_svg((Text(("$x^2$ and $\\frac{",)),))


def test_drawing_needs_no_pyplot_and_rendering_no_torch():
    code = """
import sys
import nbinspect.records, nbinspect.render.html, nbinspect.render.text, nbinspect.render.svg
import nbinspect.render.png, nbinspect.render.draw
assert "matplotlib" not in sys.modules
from nbinspect.blocks import Bar, Segment
view = (Bar("cpu", (Segment("a", 1, "PARAMETER"),)),)
nbinspect.render.html.to_html(view), nbinspect.render.svg.to_svg(view)
assert "matplotlib" in sys.modules
assert not {"matplotlib.pyplot", "torch", "IPython"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
