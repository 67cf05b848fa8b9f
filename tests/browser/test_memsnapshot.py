"""`%memsnapshot` in JupyterLab: a click on the curve lists what was alive then."""

from __future__ import annotations

import pytest
from made_up_snapshots import training, write

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect


def test_a_click_lists_what_was_alive(open_notebook, artifacts, tmp_path):
    path = write(tmp_path / "run.pickle", training())
    lab = open_notebook(f"%load_ext nbinspect\n%memsnapshot {path}")
    lab.run_cell(0)
    said = lab.page.locator(".nba-said")
    expect(said).to_have_text("Alive at 3 ms: 15.0 MiB")
    others = lab.page.locator(".nba-others")
    expect(others).to_have_text("Active (dotted): 15.0 MiB. Reserved (dashed): 32.0 MiB.")
    rows = lab.page.locator(".nba-allocations tbody tr")
    expect(rows.first).to_contain_text("/home/me/model.py:12")
    assert lab.page.locator(".nba-still .nbi-plot").first.is_hidden()  # one picture is enough
    headline = lab.page.locator(".nba-allocations .nbi-headline")
    expect(headline).to_contain_text("The peak was 15.0 MiB")
    assert headline.bounding_box()["y"] < lab.page.locator(".nba-plot").bounding_box()["y"]
    expect(lab.page.get_by_text("The peak was 15.0 MiB").locator("visible=true")).to_have_count(1)
    assert lab.page.get_by_text("Alive at the peak").is_hidden()  # the list above begins with it
    expect(lab.page.get_by_text("all segments").first).to_be_visible()
    plot = lab.page.locator(".nba-plot")
    box = plot.bounding_box()
    plot.click(position={"x": box["width"] - 2, "y": box["height"] / 2})
    expect(said).to_contain_text("MiB")
    expect(said).not_to_have_text("Alive at 3 ms: 15.0 MiB")
    expect(rows.first).to_contain_text("/home/me/data.py:3")  # the activations are freed by then
    lab.page.screenshot(path=str(artifacts / "memsnapshot-light.png"))
    plot.press("ArrowLeft")
    lab.dark()
    lab.page.wait_for_timeout(300)
    lab.page.screenshot(path=str(artifacts / "memsnapshot-dark.png"))
    assert lab.errors() == []
    assert lab.outside == []
