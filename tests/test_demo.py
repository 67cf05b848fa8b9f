"""The page that `make demo` writes asks for nothing from a network."""

from __future__ import annotations

import re
from pathlib import Path

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


def page(template: str) -> str:
    import nbformat  # its schemas are 100,000 objects, which each inspector would look through
    from nbconvert import HTMLExporter

    output = nbformat.v4.new_output("display_data", {"text/html": "<b>4.00 MiB</b>"})
    cells = [
        nbformat.v4.new_markdown_cell("# A tour"),
        nbformat.v4.new_code_cell("%gpumem", outputs=[output]),
    ]
    exporter = HTMLExporter(extra_template_basedirs=[str(NOTEBOOKS)], template_name=template)
    html: str = exporter.from_notebook_node(nbformat.v4.new_notebook(cells=cells))[0]
    return html


def loads(html: str) -> list[str]:
    return re.findall(r'(?:src="|href="|import\("|url\("?)(https?://[^")]+)', html)


def test_the_page_is_whole_and_loads_nothing():
    html = page("offline")
    assert "<b>4.00 MiB</b>" in html
    assert "A tour" in html
    assert "</html>" in html
    assert loads(html) == []


def test_the_check_finds_what_the_usual_page_loads():
    assert any("mathjax" in url for url in loads(page("lab")))
