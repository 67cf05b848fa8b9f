"""`%gpumem` in JupyterLab: the page shows whose bytes they are, to the byte."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect

SETUP = """
%load_ext nbinspect
import torch
model = torch.nn.Linear(512, 1024)
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(8, 512)).sum().backward()
optimizer.step()
optimizer.zero_grad(set_to_none=True)
"""
PARAMETERS = 4 * (512 * 1024 + 1024)
EXPECTED = {
    "parameters": PARAMETERS,
    "optimizer state": 2 * PARAMETERS + 2 * 4,  # two moments and a step for each parameter
    "Out history": 4 * 256 * 1024,
}


def shown_bytes(output, label: str) -> int:
    """Give the exact bytes that hovering over a part of the bar shows."""
    title = output.locator(f".nbi-seg[title^='{label}: ']").first.get_attribute("title")
    return int(re.sub(r"\D", "", title))


def test_bars_show_the_right_bytes(open_notebook, artifacts):
    lab = open_notebook(SETUP, "torch.ones(256, 1024)", "%gpumem")
    lab.run_all()
    lab.wait_idle()
    output = lab.cell(2).locator(".jp-OutputArea")
    expect(output.locator(".nbi-headline")).to_contain_text("Tensors hold 7.01 MiB")
    assert {label: shown_bytes(output, label) for label in EXPECTED} == EXPECTED
    expect(output.locator(".nbi-sep").first).to_be_hidden()  # for pages without a style sheet
    expect(output).to_contain_text("model.weight")
    expect(output).to_contain_text("optimizer.state[model.weight]['exp_avg']")
    expect(output).to_contain_text("Out[2]")
    lab.dark(False)  # an earlier test may have left the other theme
    lab.page.wait_for_timeout(300)
    lab.page.screenshot(path=str(artifacts / "gpumem-light.png"))
    lab.dark()
    lab.page.wait_for_timeout(300)
    lab.page.screenshot(path=str(artifacts / "gpumem-dark.png"))
    assert lab.errors() == []
    assert lab.outside == []


def test_live_option_opens_and_stops_the_bars(open_notebook):
    lab = open_notebook("%load_ext nbinspect\n%gpumem --live", "%gpumem --live --stop")
    lab.run_cell(0)
    expect(lab.page.locator(".nbl-state")).to_have_text("live")
    lab.run_cell(1)
    expect(lab.page.locator(".nbl-live")).to_have_count(0)
    expect(lab.cell(0).locator("[class^=nbinspect-still]")).to_be_visible()
    assert lab.errors() == []
