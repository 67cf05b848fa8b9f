"""What made-up views look like, kept as files.

`NBINSPECT_UPDATE_GOLDEN=1 pytest tests/render/test_golden.py` writes them anew; read the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from made_up_graphs import chain, cycle, forty_holders, three_roots
from made_up_views import labelled, report, snapshot

from nbinspect.render.dot import to_dot
from nbinspect.render.html import to_html
from nbinspect.render.picture import placed
from nbinspect.render.text import to_text

GOLDEN = Path(__file__).parent.parent / "golden"
VIEWS = {"snapshot": snapshot(), "report": report(), "every_block": labelled("a label")}

GRAPHS = {
    "chain": chain(),
    "three_roots": three_roots(),
    "forty_holders": forty_holders(),
    "cycle": cycle(),
}


def check(name: str, written: str) -> None:
    path = GOLDEN / name
    if os.environ.get("NBINSPECT_UPDATE_GOLDEN"):
        path.write_text(written, encoding="utf-8")
    assert written == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", VIEWS)
def test_text(name):
    check(f"{name}.txt", to_text(VIEWS[name]) + "\n")


@pytest.mark.parametrize("name", VIEWS)
def test_html(name):
    """One element a line; the style sheet and the image's data have tests of their own."""
    page = re.sub(r"<style>.*?</style>", "<style></style>", to_html(VIEWS[name]), flags=re.DOTALL)
    page = re.sub(r"base64,[^\"]*", "base64,", page)
    check(f"{name}.html", page.replace("><", ">\n<") + "\n")


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_text(name):
    check(f"graph_{name}.txt", to_text((GRAPHS[name],)) + "\n")


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_dot(name):
    check(f"graph_{name}.dot", to_dot(GRAPHS[name]))


@pytest.mark.parametrize("name", ["chain", "cycle"])
def test_graph_html(name, monkeypatch):
    """Without coordinates: where Graphviz puts things is its own business."""
    monkeypatch.setenv("PATH", "")  # the Graphviz that comes with nbinspect
    placed.cache_clear()
    page = re.sub(
        r"<style>.*?</style>", "<style></style>", to_html((GRAPHS[name],)), flags=re.DOTALL
    )
    page = re.sub(r"base64,[^\"]*", "base64,", page)
    page = re.sub(r' (d|points|x|y|width|height|viewBox)="[^"]*"', r' \1=""', page)
    page = re.sub(r"--nbi-w:[^\"]*", "--nbi-w:", page)
    check(f"graph_{name}.html", page.replace("><", ">\n<") + "\n")
