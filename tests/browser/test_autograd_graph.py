"""The picture of an autograd graph in JupyterLab: unfold, fold, colour, search, download, save."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("playwright.sync_api")
from labdriver import lab_page, write_notebook
from playwright.sync_api import expect

MODEL = """
%load_ext nbinspect
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, 4 * n), nn.Linear(4 * n, n)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))
class Net(nn.Module):
    def __init__(self, n=32, depth=24):
        super().__init__()
        self.words = nn.Embedding(100, n)
        self.blocks = nn.ModuleList(Block(n) for _ in range(depth))
        self.head = nn.Linear(n, 100)
    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
model = Net()
tokens = torch.randint(0, 100, (4, 16))
loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
"""
BACKWARD = """%%graphwatch
loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
loss.backward()
model.head.weight.grad[0, 0] = float("nan")
"""


def box(lab, name: str):
    """Find a box or frame by what a screen reader calls it."""
    return lab.page.locator(
        f".nbg-explorer [role=treeitem][aria-label^={json.dumps(name, ensure_ascii=False)}]"
    )


def labels(lab) -> list[str]:
    return lab.page.locator(
        ".nbg-stage .nbi-label, .nbg-stage .nbi-frame-label"
    ).all_text_contents()


def settled(lab, n=0) -> None:
    explorer = lab.page.locator(".nbg-explorer").nth(n)
    expect(explorer.locator(".nbg-said")).not_to_have_text(re.compile("Waiting|Searching"))
    expect(explorer.locator(".nbg-problem")).to_have_text("")


def shoot(lab, artifacts, name: str) -> None:
    lab.dark(name.endswith("dark"))
    lab.page.locator(".nbg-explorer").last.scroll_into_view_if_needed()
    lab.page.wait_for_timeout(300)
    lab.page.screenshot(path=str(artifacts / f"autograd-{name}.png"))


def assert_clean(lab) -> None:
    assert lab.errors() == []
    assert lab.outside == []
    assert [line for line in lab.console if "nbinspect" in line or "pageerror" in line] == []


def test_modules_unfold_and_fold_and_take_colour(open_notebook, artifacts):
    lab = open_notebook(MODEL, "%autograd loss", BACKWARD)
    lab.run_cell(0)
    lab.run_cell(1)
    lab.wait_idle()
    repeated = box(lab, "model.blocks.0 … blocks.23, Block x24")
    expect(repeated).to_be_visible()
    shoot(lab, artifacts, "folded-light")
    first = labels(lab)
    repeated.click()
    expect(box(lab, "model.blocks.17, Block")).to_have_count(1)
    settled(lab)
    box(lab, "model.blocks.1, Block").click()
    expect(box(lab, "model.blocks.1.down, Linear")).to_have_count(1)
    settled(lab)
    shoot(lab, artifacts, "unfolded-light")
    shoot(lab, artifacts, "unfolded-dark")
    lab.page.get_by_role("button", name="Show the whole picture").click()
    lab.page.locator(".nbi-frame[aria-label^='blocks.0 …'] .nbg-badge").click()
    expect(box(lab, "model.blocks.1.down, Linear")).to_have_count(0)
    settled(lab)
    assert labels(lab) == first
    leaves = lab.page.get_by_label("Views and leaves")
    leaves.check()
    expect(lab.page.locator(".nbg-stage")).to_contain_text(re.compile("words"))
    settled(lab)
    leaves.uncheck()
    settled(lab)
    search = lab.page.get_by_role("searchbox", name="Search the boxes")
    search.fill("head")
    expect(lab.page.locator(".nbg-matches")).to_have_text(re.compile(r"\d match"))
    search.press("Escape")
    lab.run_cell(2)
    lab.wait_idle()
    expect(lab.cell(2).locator(".nbg-explorer")).to_be_visible()
    second = lab.cell(2)
    second.get_by_label("Colour by").select_option("gradient")
    expect(second.locator(".nbi-scale").last).to_contain_text("gradient norm")
    expect(second.locator(".nbg-stage .nbi-alert")).not_to_have_count(0)
    settled(lab, 1)
    shoot(lab, artifacts, "gradient-light")
    assert_clean(lab)


def test_it_downloads_and_stays_when_saved(server, context, open_notebook, artifacts):
    path = write_notebook(server.root / "saved-autograd.ipynb", MODEL, "%autograd loss")
    with lab_page(server, context, path) as lab:
        lab.run_all()
        lab.wait_idle()
        expect(lab.page.locator(".nbg-explorer")).to_be_visible()
        for kind in ("SVG", "PNG"):
            with lab.page.expect_download() as download:
                lab.page.get_by_role("button", name=f"Download as {kind}").click()
            file = artifacts / f"autograd-download.{kind.lower()}"
            download.value.save_as(file)
            assert download.value.suggested_filename == f"how-loss-was-made.{kind.lower()}"
            assert file.stat().st_size > 3000
        lab.page.wait_for_timeout(300)
        lab.save()
    lab = open_notebook(path)
    output = lab.cell(1).locator(".jp-OutputArea")
    expect(output.locator(".nbg-still .nbi-picture").first).to_be_visible()
    assert lab.outside == []
