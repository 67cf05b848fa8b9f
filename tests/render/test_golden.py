"""What made-up views look like, kept as files.

`NBINSPECT_UPDATE_GOLDEN=1 pytest tests/render/test_golden.py` writes them anew; read the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from made_up_views import labelled, report, snapshot

from nbinspect.render.html import to_html
from nbinspect.render.text import to_text

GOLDEN = Path(__file__).parent.parent / "golden"
VIEWS = {"snapshot": snapshot(), "report": report(), "every_block": labelled("a label")}


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
