"""The step table of `%%gradwatch` in JupyterLab: slider, keys, sort, fold, clicks, live, saved."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("playwright.sync_api")
from labdriver import lab_page, write_notebook
from playwright.sync_api import expect

SETUP = """
%load_ext nbinspect
import time, torch, nbinspect
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 64), nn.Linear(64, width)
    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(Block(16) for _ in range(6))
        self.spare = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50)
    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
def train(n_steps, pause=0.0, spike=-1, clip=5.0):
    for step in range(n_steps):
        tokens = torch.randint(0, 50, (8, 12))
        loss = nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
        if step == spike:
            loss = loss * 1e4
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        time.sleep(pause)
"""
WATCHED = "%%gradwatch -o report --hist\ntrain(120, spike=80)"


def row(lab, path: str):
    return lab.page.locator(f'.nbs-row[data-path="{path}"]')


def paths(lab) -> list[str]:
    return lab.page.locator(".nbs-row").evaluate_all("a => a.map(e => e.dataset.path)")


def shoot(lab, artifacts, name: str) -> None:
    lab.dark(name.endswith("dark"))
    table = lab.page.locator(".nbs-root")
    table = table if table.count() else lab.page.locator(".nbs-still")
    table.first.scroll_into_view_if_needed()
    lab.page.wait_for_timeout(400)
    lab.page.screenshot(path=str(artifacts / f"gradwatch-{name}.png"))


def assert_clean(lab) -> None:
    assert lab.errors() == []
    assert lab.outside == []
    assert [line for line in lab.console if "nbinspect" in line or "pageerror" in line] == []


@pytest.fixture
def opened(open_notebook):
    lab = open_notebook(SETUP, WATCHED, "%%gradwatch --against report\ntrain(60)")
    lab.run_cell(0)
    lab.run_cell(1)
    lab.wait_idle()
    expect(lab.page.locator(".nbs-said")).to_have_text("step 119 of 120")
    return lab


def test_step_through_sort_fold_and_jump(opened, artifacts):
    lab, page = opened, opened.page
    said, root = page.locator(".nbs-said"), page.locator(".nbs-root")
    shoot(lab, artifacts, "light")
    shoot(lab, artifacts, "dark")
    # What it says and what to do come first; tables and pictures are in the widget alone.
    verdict = page.locator(".nbs-still .nbi-headline")
    expect(verdict).to_be_visible()
    assert verdict.bounding_box()["y"] < root.bounding_box()["y"]
    expect(page.locator(".nbs-still .nbi-advice").first).to_be_visible()
    for hidden in (".nbi-table", ".nbi-shades", "details", "img"):
        assert page.locator(f".nbs-still {hidden}").count() > 0
        expect(page.locator(f".nbs-still {hidden}").locator("visible=true")).to_have_count(0)
    # Keys and slider.
    root.focus()
    page.keyboard.press("ArrowLeft")
    expect(said).to_have_text("step 118 of 120")
    page.keyboard.press("Shift+ArrowLeft")
    expect(said).to_have_text("step 108 of 120")
    page.keyboard.press("Home")
    expect(said).to_have_text("step 0 of 120")
    page.keyboard.press("ArrowRight")
    page.locator(".nbs-slider").fill("50")
    expect(said).to_have_text("step 50 of 120")
    page.get_by_role("button", name="Next step").click()
    expect(said).to_have_text("step 51 of 120")
    for key in "xdd":  # in JupyterLab's command mode these cut and delete the cell
        page.keyboard.press(key)
    expect(root).to_be_visible()
    # Fold and unfold.
    before = paths(lab)
    assert "net.layers" in before
    assert len(before) <= 20
    page.get_by_role("button", name="Fold net.layers", exact=True).click()
    assert len(paths(lab)) == len(before) - 6
    page.get_by_role("button", name="Unfold net.layers", exact=True).click()
    assert paths(lab) == before
    page.get_by_role("button", name="Unfold net.layers.3", exact=True).click()
    expect(row(lab, "net.layers.3.up")).to_be_visible()
    page.get_by_role("button", name="Fold net.layers.3", exact=True).click()
    assert paths(lab) == before
    # Sort.
    page.get_by_role("button", name="norm", exact=True).click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("norm")
    norms = page.locator(".nbs-row td:nth-child(2)").evaluate_all(
        "a => a.map(e => parseFloat(e.title)).filter(v => !isNaN(v))"
    )
    assert norms == sorted(norms, reverse=True)
    assert len(norms) > 2
    page.get_by_role("button", name="parameter", exact=True).click()
    assert paths(lab) == before
    # Chips jump to step and row.
    chips = page.locator(".nbs-chip")
    assert sorted(chips.locator("b").all_inner_texts()) == ["spiking", "unused"]
    page.locator(".nbs-chip", has_text="spiking").click()
    expect(said).to_have_text("step 80 of 120")
    expect(page.locator(".nbs-why")).to_contain_text("clip_grad_norm_(net.parameters(), 1.0)")
    expect(page.locator(".nbs-chosen")).to_have_count(1)
    expect(page.locator(".nbs-chart .nbs-plot")).to_be_visible()
    shoot(lab, artifacts, "spike-light")
    shoot(lab, artifacts, "spike-dark")
    page.get_by_role("button", name="last 50", exact=True).click()
    expect(page.locator(".nbs-chart .nbs-plot text").last).to_have_text("step 80")
    # The value in the page is the one of the report.
    page.locator(".nbs-chip", has_text="unused").click()
    expect(row(lab, "net.spare.weight")).to_contain_text("none")
    # A strip leads to a step.
    row(lab, "net.head").locator("canvas").click(position={"x": 1, "y": 8})
    expect(said).to_have_text("step 0 of 120")
    for width in (620, 900):
        page.set_viewport_size({"width": width, "height": 1000})
        shoot(lab, artifacts, f"{width}-light")
        fits = "e => e.scrollWidth <= e.clientWidth + 1"
        assert root.evaluate(fits)
        sizes = page.locator(".nbs-root *").evaluate_all(
            "a => a.filter(e => e.children.length === 0 && e.textContent.trim() && e.tagName !== 'STYLE' && e.tagName !== 'title').map(e => parseFloat(getComputedStyle(e).fontSize))"
        )
        assert min(sizes) >= 11
    page.set_viewport_size({"width": 1280, "height": 1000})
    # Beside an earlier run.
    lab.run_cell(2)
    lab.wait_idle()
    second = page.locator(".nbs-root").nth(1)
    expect(second.locator(".nbs-facts")).to_contain_text("before: loss")
    second.locator(".nbs-pick").first.click()
    expect(second.locator(".nbs-before")).to_have_count(1)
    second.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    page.screenshot(path=str(artifacts / "gradwatch-against-light.png"))
    assert_clean(lab)


def test_it_moves_while_the_cell_runs(open_notebook):
    lab = open_notebook(SETUP, "%%gradwatch\ntrain(60, pause=0.1)")
    lab.run_cell(0)
    lab.wait_idle()
    lab.run_cell(1, wait=False)
    said = lab.page.locator(".nbs-said")
    expect(said).to_have_text(re.compile(r"^step \d+ of \d"), timeout=30_000)
    expect(lab.page.locator(".nbs-state")).to_have_text("live")
    expect(said).to_have_text(re.compile(r"^step [12]\d of"), timeout=30_000)
    lab.wait_idle()
    expect(said).to_have_text("step 59 of 60", timeout=30_000)
    expect(lab.page.locator(".nbs-state")).not_to_have_text("live")
    assert_clean(lab)


def test_a_saved_notebook_keeps_tables_and_heat_map(server, context, open_notebook, artifacts):
    path = write_notebook(server.root / "saved-gradwatch.ipynb", SETUP, WATCHED)
    with lab_page(server, context, path) as lab:
        lab.run_all()
        lab.wait_idle()
        expect(lab.page.locator(".nbs-said")).to_have_text("step 119 of 120")
        lab.page.wait_for_timeout(500)
        lab.save()
    lab = open_notebook(path)
    output = lab.cell(1).locator(".jp-OutputArea")
    expect(output.locator(".nbs-still img.nbi-shades-map")).to_be_visible()
    box = "e => { const b = e.getBoundingClientRect(); return [b.top, b.bottom]; }"
    names = output.locator(".nbs-still .nbi-shades th")
    picture = output.locator(".nbs-still img.nbi-shades-map").evaluate(box)
    assert picture == pytest.approx(
        [names.first.evaluate(box)[0], names.last.evaluate(box)[1]], abs=3
    )
    expect(output.locator(".nbs-still .nbi-table")).not_to_have_count(0)
    for words in ("Loading widget", "Error displaying"):
        shown = lab.page.get_by_text(words)
        assert not any(shown.nth(n).is_visible() for n in range(shown.count()))
    shoot(lab, artifacts, "reopened-light")
    shoot(lab, artifacts, "reopened-dark")
    assert '"image/png"' in path.read_text()
    assert lab.outside == []


def test_exponents_are_drawn_over_what_formats_hold(opened):
    lab, page = opened, opened.page
    powers = page.locator(".nbs-powers")
    expect(powers).to_contain_text("gradients as written in step 100, by power of two")
    expect(powers).to_contain_text("bfloat16")
    assert powers.locator("rect.nbs-column").count() > 5
    assert powers.locator("rect.nbs-format").count() >= 3
    row(lab, "net.head").locator(".nbs-pick").click()
    expect(powers.locator("b")).to_have_text("net.head")
    page.locator(".nbs-slider").fill("35")
    expect(powers).to_contain_text("step 40")
    assert_clean(lab)


MANY = """
class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        for n in range(600):
            self.register_parameter(f"p{n}", nn.Parameter(torch.randn(8)))
flat = Flat()
sgd = torch.optim.SGD(flat.parameters(), lr=1e-3)
def run(n):
    for _ in range(n):
        sgd.zero_grad()
        torch.stack(list(flat.parameters())).square().sum().backward()
        sgd.step()
"""


def test_of_many_rows_only_those_in_sight_are_built(open_notebook):
    lab = open_notebook(SETUP, MANY, "%%gradwatch\nrun(12)")
    for cell in range(3):
        lab.run_cell(cell)
    lab.wait_idle()
    page = lab.page
    expect(page.locator(".nbs-said")).to_have_text("step 11 of 12")
    page.get_by_role("button", name="Unfold flat").click()
    expect(row(lab, "flat.p0")).to_be_visible()
    assert 40 <= page.locator(".nbs-row").count() <= 200
    height = page.locator(".nbs-table").evaluate("e => e.getBoundingClientRect().height")
    assert height > 600 * 15
    # What comes into sight is built and filled, and what goes out of it is let go.
    gaps = page.locator(".nbs-gap")
    gaps.last.scroll_into_view_if_needed()
    expect(row(lab, "flat.p599")).to_be_visible()
    expect(row(lab, "flat.p599").locator(".nbs-figure").first).not_to_be_empty()
    assert page.locator(".nbs-row").count() <= 200
    # Sorting shows the largest first, wherever it stood.
    page.get_by_role("button", name="norm", exact=True).click()
    expect(page.locator("th[aria-sort=descending]")).to_be_visible()
    assert page.locator(".nbs-row").count() <= 200
    assert_clean(lab)
