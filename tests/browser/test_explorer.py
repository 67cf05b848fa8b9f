"""The graph of `nbinspect.explore` in JupyterLab: clicks, keys, search, and what is left when saved."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest

pytest.importorskip("playwright.sync_api")
from labdriver import lab_page, write_notebook
from playwright.sync_api import expect

PLANT = """
import torch, nbinspect
class Cache: pass
def plant():
    cache = Cache()
    hidden = torch.ones(64, 256, requires_grad=True) * 2
    cache.kept = {"k": [hidden]}
    return cache, hidden, [(hidden ** 2).sum()]
cache, t, losses = plant()
import sys; print(sys.getrefcount(t), t._use_count())
"""
EXPLORE = "nbinspect.explore(nbinspect.refchain(t, name='t', all=True), t)"
DROP = "losses.clear(); cache.kept.clear(); del t"
LIST_FACTS = re.compile(r"^list · \d+ bytes by itself · .+ would be freed with it · ")
ALL_FACTS = re.compile(
    r"byte.+ would be freed with it · .*(In\[\d\]|which cell made it is not known)"
)
COUNT = "print(sys.getrefcount(t), t._use_count())"


def box(lab, name: str):
    """Find a box by what a screen reader calls it."""
    return lab.page.locator(f".nbg-explorer [role=treeitem][aria-label^={json.dumps(name)}]")


def target_box(lab):
    return lab.page.locator(".nbg-explorer .nbi-target")


def labels(lab) -> list[str]:
    return lab.page.locator(".nbg-stage .nbi-label").all_text_contents()


def expect_answer(lab) -> None:
    expect(lab.page.locator(".nbg-explorer")).not_to_have_class(re.compile("nbg-waiting"))
    expect(lab.page.locator(".nbg-problem")).to_have_text("")


def open_explorer(open_notebook, *more: str):
    lab = open_notebook(PLANT, EXPLORE, *more)
    lab.run_cell(0)
    lab.run_cell(1)
    lab.wait_idle()
    expect(lab.page.locator(".nbg-explorer .nbi-target")).to_be_visible()
    return lab


def assert_clean(lab) -> None:
    assert lab.errors() == []
    assert lab.outside == []
    assert [line for line in lab.console if "nbinspect" in line or "pageerror" in line] == []


def shoot(lab, artifacts, name: str) -> None:
    lab.dark(name.endswith("dark"))
    lab.page.locator(".nbg-explorer, .nbg-still").last.scroll_into_view_if_needed()
    lab.page.wait_for_timeout(300)
    lab.page.screenshot(path=str(artifacts / f"explorer-{name}.png"))


def test_clicks_unfold_three_levels_and_fold_again(open_notebook, artifacts):
    lab = open_explorer(open_notebook, COUNT)
    shoot(lab, artifacts, "first-light")
    expect(lab.page.locator(".nbg-still .nbi-picture").first).to_be_hidden()
    first = labels(lab)
    target = target_box(lab)
    expect(target).to_have_attribute("aria-expanded", "false")
    target.hover()
    facts = lab.page.locator(".nbg-facts")
    expect(facts).to_contain_text("65 536 bytes \u00b7 on cpu")
    expect(facts).to_contain_text("last assigned in In[1]")
    shoot(lab, artifacts, "hover-light")
    target.click()
    expect(box(lab, "list")).to_have_count(1)
    expect(target).to_have_attribute("aria-expanded", "true")
    box(lab, "list").hover()
    expect(facts).to_have_text(LIST_FACTS)
    shoot(lab, artifacts, "hover-dark")
    lab.dark(False)
    box(lab, "list").click()
    expect(box(lab, "dict")).to_have_count(1)
    box(lab, "dict").first.click()
    expect_answer(lab)
    for one in lab.page.locator(".nbg-stage .nbi-node:not(.nbi-stub)").all():
        one.hover()
        expect(facts).to_contain_text(ALL_FACTS)
    box(lab, "dict").last.hover()
    shoot(lab, artifacts, "hover-unfolded-light")
    shoot(lab, artifacts, "hover-unfolded-dark")
    lab.dark(False)
    expect(lab.page.locator(".nbg-said")).to_contain_text(re.compile(r"\d new|already"))
    assert len(labels(lab)) >= len(first) + 3
    assert len(
        set(lab.page.locator(".nbg-stage .nbi-node").evaluate_all("a => a.map(e => e.dataset.key)"))
    ) == len(labels(lab))
    shoot(lab, artifacts, "unfolded-light")
    shoot(lab, artifacts, "unfolded-dark")
    target.click()
    expect(lab.page.locator(".nbg-said")).to_have_text("Folded.")
    assert labels(lab) == first
    lab.run_cell(2)
    lab.wait_idle()
    before = lab.cell(0).locator(".jp-OutputArea-output").inner_text()
    expect(lab.cell(2).locator(".jp-OutputArea-output")).to_have_text(before.strip())
    assert_clean(lab)


def test_keys_alone_are_enough(open_notebook):
    lab = open_explorer(open_notebook)
    page = lab.page
    page.get_by_role("searchbox", name="Search the boxes").focus()
    for _ in range(6):  # five buttons, then the first box
        page.keyboard.press("Tab")
    on_box = "() => document.activeElement.matches('.nbi-node')"
    assert page.evaluate(on_box)
    for _ in range(12):
        page.keyboard.press("ArrowDown")
    assert page.evaluate("() => document.activeElement.matches('.nbi-target')")
    expect(page.locator(".nbg-facts")).to_contain_text("on cpu")
    page.keyboard.press("Enter")
    expect(box(lab, "list")).to_have_count(1)
    assert page.evaluate("() => document.activeElement.matches('.nbi-target')"), "focus stays"
    page.keyboard.press("ArrowUp")
    assert page.evaluate(on_box)
    assert not page.evaluate("() => document.activeElement.matches('.nbi-target')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    expect(box(lab, "list")).to_have_count(0)
    for key in "xdd":  # in JupyterLab's command mode these cut and delete the cell
        page.keyboard.press(key)
    expect(page.locator(".nbg-explorer")).to_be_visible()
    assert_clean(lab)


def test_search_shows_what_matches_and_dims_the_rest(open_notebook, artifacts):
    lab = open_explorer(open_notebook)
    search = lab.page.get_by_role("searchbox", name="Search the boxes")
    search.fill("backward")
    expect(lab.page.locator(".nbg-matches")).to_have_text(re.compile(r"\d match"))
    hits = lab.page.locator(".nbg-hit")
    assert hits.count() >= 1
    assert all("Backward" in text for text in hits.locator("title").all_text_contents())
    dimmed = lab.page.locator(".nbg-stage .nbi-node:not(.nbg-hit)").first
    assert float(dimmed.evaluate("e => getComputedStyle(e).opacity")) < 0.5
    shoot(lab, artifacts, "search-light")
    search.fill("no such box")
    expect(lab.page.locator(".nbg-matches")).to_have_text("no matches")
    search.press("Escape")
    expect(search).to_have_value("")
    expect(lab.page.locator(".nbg-matches")).to_have_text("")
    assert_clean(lab)


def test_it_moves_zooms_and_fits_narrow_and_wide_cells(open_notebook, artifacts):
    lab = open_explorer(open_notebook)
    page = lab.page
    for one in (target_box(lab), box(lab, "list")):
        one.click()
        expect_answer(lab)
    for width, theme in ((620, "light"), (620, "dark"), (1280, "dark")):
        page.set_viewport_size({"width": width, "height": 1000})
        shoot(lab, artifacts, f"{width}-{theme}")
        explorer = page.locator(".nbg-explorer")
        room = "e => e.getBoundingClientRect().right <= e.parentElement.getBoundingClientRect().right + 1"
        assert explorer.evaluate(room)
        texts = page.locator(".nbg-explorer text, .nbg-explorer button, .nbg-explorer p")
        assert (
            min(texts.evaluate_all("a => a.map(e => parseFloat(getComputedStyle(e).fontSize))"))
            >= 11
        )
    svg = page.locator(".nbg-stage svg")
    natural = svg.bounding_box()["width"]
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Zoom in").click()
    assert svg.bounding_box()["width"] == pytest.approx(natural * 1.5625, rel=0.01)
    page.set_viewport_size({"width": 620, "height": 1000})
    page.locator(".nbg-caption").scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    view = page.locator(".nbg-view").bounding_box()
    before = svg.bounding_box()
    assert before["width"] > view["width"], "there is something to move"
    x, y = view["x"] + view["width"] / 2, view["y"] + view["height"] - 12
    page.mouse.move(x, y)
    page.mouse.down()
    direction = 1 if before["x"] < view["x"] else -1
    page.mouse.move(x + direction * 60, y, steps=5)
    page.mouse.up()
    assert abs(svg.bounding_box()["x"] - before["x"]) > 10
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_timeout(200)
    assert svg.bounding_box()["width"] > before["width"] * 1.1
    page.get_by_role("button", name="Show the whole picture").click()
    fitted = svg.bounding_box()
    assert fitted["width"] <= page.locator(".nbg-view").bounding_box()["width"]
    assert_clean(lab)


def test_the_object_dies_while_the_graph_is_open(open_notebook, artifacts):
    lab = open_explorer(
        open_notebook,
        "import weakref; alive = weakref.ref(t)",
        DROP,
        "print('alive:', alive() is not None)",
    )
    target_box(lab).click()
    expect(box(lab, "list")).to_have_count(1)
    for index in (2, 3, 4):
        lab.run_cell(index)
    lab.wait_idle()
    expect(lab.cell(4).locator(".jp-OutputArea-output")).to_have_text("alive: False")
    box(lab, "list").click()
    expect(lab.page.locator(".nbg-problem")).to_contain_text("t is gone: nothing holds it.")
    expect(box(lab, "t, gone")).to_have_class(re.compile("nbg-gone"))
    expect(lab.page.locator(".nbg-badge")).to_have_count(0)
    shoot(lab, artifacts, "gone-light")
    assert_clean(lab)


def test_a_running_cell_and_a_lost_kernel_are_said(open_notebook):
    lab = open_explorer(open_notebook, "import time; time.sleep(6)")
    lab.run_cell(2, wait=False)
    target_box(lab).click()
    expect(lab.page.locator(".nbg-said")).to_have_text("Waiting for the kernel…")
    expect(target_box(lab)).to_have_attribute("aria-busy", "true")
    expect(lab.page.locator(".nbg-problem")).to_contain_text("No answer yet")
    expect(box(lab, "list")).to_have_count(1)
    expect_answer(lab)
    lab.page.evaluate(
        "() => { window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"
    )
    expect(lab.page.locator(".nbg-problem")).to_have_text(re.compile("kernel is gone"))
    assert lab.page.locator(".nbg-stage .nbi-node").count() > 2
    lab.wait_idle()


def test_the_picture_downloads_as_svg_and_png(open_notebook, artifacts):
    lab = open_explorer(open_notebook)
    saved = {}
    for kind in ("SVG", "PNG"):
        with lab.page.expect_download() as download:
            lab.page.get_by_role("button", name=f"Download as {kind}").click()
        path = artifacts / f"explorer-download.{kind.lower()}"
        download.value.save_as(path)
        assert download.value.suggested_filename == f"who-holds-t.{kind.lower()}"
        saved[kind] = path.read_bytes()
    texts = [e.text for e in ET.fromstring(saved["SVG"]).iter("{http://www.w3.org/2000/svg}text")]
    assert "t" in texts
    assert b"var(" not in saved["SVG"], "it stands alone"
    assert b"color(srgb" not in saved["SVG"]
    assert saved["PNG"].startswith(b"\x89PNG")
    assert len(saved["PNG"]) > 5000
    assert_clean(lab)


@pytest.fixture(scope="module")
def saved(server, context):
    """A notebook that was saved while the graph was open; its page and kernel are gone."""
    path = write_notebook(server.root / "saved-explorer.ipynb", PLANT, EXPLORE)
    with lab_page(server, context, path) as lab:
        lab.run_all()
        lab.wait_idle()
        expect(lab.page.locator(".nbg-explorer")).to_be_visible()
        lab.page.wait_for_timeout(300)
        lab.save()
    return path


def test_a_saved_notebook_shows_the_picture_when_opened_again(saved, open_notebook, artifacts):
    lab = open_notebook(saved)
    output = lab.cell(1).locator(".jp-OutputArea")
    expect(output.locator(".nbg-still .nbi-picture").first).to_be_visible()
    shoot(lab, artifacts, "reopened-light")
    for words in ("Loading widget", "Error displaying"):
        shown = lab.page.get_by_text(words)
        assert not any(shown.nth(n).is_visible() for n in range(shown.count()))
    assert lab.outside == []
