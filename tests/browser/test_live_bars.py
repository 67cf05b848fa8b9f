"""Live memory bars in JupyterLab: they move, survive an interrupt, and leave a picture behind."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("playwright.sync_api")
from labdriver import lab_page, write_notebook
from playwright.sync_api import expect

OPEN = "import time, threading, torch\nfrom nbinspect.widgets import close_live, open_live\nopen_live()"
TRAIN = """
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.Adam(model.parameters())
kept, end = [], time.monotonic() + 120
while time.monotonic() < end:
    optimizer.zero_grad()
    loss = model(torch.randn(64, 256)).square().mean()
    loss.backward()
    optimizer.step()
    if len(kept) < 200:
        kept.append(torch.randn(512, 1024))
    time.sleep(0.01)
"""
GROW = "more = [torch.randn(1024, 1024) for _ in range(40) if not time.sleep(0.1)]"
THREADS = "print(sorted(t.name for t in threading.enumerate() if 'nbinspect' in t.name))"


def used_bytes(lab) -> int:
    return int(lab.page.locator(".nbl-track").last.get_attribute("aria-valuenow"))


def wait_until_grown(lab, size_bytes: int) -> None:
    """Wait until the page, not the kernel, shows at least that much."""
    lab.page.wait_for_function(
        "least => Number([...document.querySelectorAll('.nbl-track')].at(-1)"
        ".getAttribute('aria-valuenow')) >= least",
        arg=size_bytes,
    )


def test_bars_move_survive_an_interrupt_and_close(open_notebook, artifacts):
    lab = open_notebook(OPEN, TRAIN, GROW, THREADS, THREADS)
    page = lab.page
    lab.run_cell(0)
    bars = page.locator(".nbl-live")
    expect(bars).to_be_visible()
    expect(page.locator(".nbl-state")).to_have_text("live")
    expect(page.locator("[class^=nbinspect-still]")).to_be_hidden()

    lab.run_cell(1, wait=False)
    wait_until_grown(lab, used_bytes(lab) + 10 * 2**20)
    wait_until_grown(lab, used_bytes(lab) + 10 * 2**20)
    expect(lab.cell(1).locator(".jp-InputPrompt")).to_have_text("[*]:")
    page.screenshot(path=str(artifacts / "live-light.png"))

    lab.interrupt()
    lab.wait_idle()
    assert any("KeyboardInterrupt" in text for text in lab.errors())
    before = used_bytes(lab)
    lab.run_cell(2, wait=False)
    wait_until_grown(lab, before + 20 * 2**20)
    expect(lab.cell(2).locator(".jp-InputPrompt")).to_have_text("[*]:")
    lab.wait_idle()

    lab.run_cell(3)
    expect(lab.cell(3).locator(".jp-OutputArea-output")).to_have_text("['nbinspect-live']")
    page.get_by_role("button", name="Close the live memory bars").focus()
    page.keyboard.press("Enter")
    expect(bars).to_have_count(0)
    expect(page.locator("[class^=nbinspect-still]")).to_be_visible()
    lab.run_cell(4)
    expect(lab.cell(4).locator(".jp-OutputArea-output")).to_have_text("[]")
    page.screenshot(path=str(artifacts / "live-closed.png"))
    assert lab.outside == []
    assert [line for line in lab.console if "nbinspect" in line or "pageerror" in line] == []


def test_bars_fit_narrow_and_dark_pages_and_run_again_in_place(open_notebook, artifacts):
    lab = open_notebook(OPEN)
    page = lab.page
    for _ in range(2):
        lab.run_cell(0)
        lab.wait_idle()
        expect(page.locator(".nbl-live")).to_have_count(1)
    assert meter_is_whole(page.locator(".nbl-track").last)
    for width, theme in ((1280, "dark"), (480, "dark"), (480, "light")):
        page.set_viewport_size({"width": width, "height": 700})
        lab.dark(theme == "dark")
        page.wait_for_timeout(300)
        page.screenshot(path=str(artifacts / f"live-{width}-{theme}.png"))
        overflow = page.locator(".nbl-live").evaluate(
            "e => [e, ...e.querySelectorAll('*')].some("
            "n => n.getBoundingClientRect().right > e.parentElement.getBoundingClientRect().right + 1)"
        )
        assert not overflow, f"something is wider than the cell at {width} px"
        smallest = page.locator(".nbl-live").evaluate(
            "e => Math.min(...[...e.querySelectorAll('*')].filter(n => n.innerText)"
            ".map(n => parseFloat(getComputedStyle(n).fontSize)))"
        )
        assert smallest >= 11
    page.evaluate(
        "() => { window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"
    )
    expect(page.locator(".nbl-state")).to_have_text(re.compile("kernel gone, last reading"))
    page.get_by_role("button", name="Close the live memory bars").click()
    expect(page.locator("[class^=nbinspect-still]")).to_be_visible()
    lab.wait_idle()


def meter_is_whole(meter) -> bool:
    now, most = (int(meter.get_attribute(f"aria-value{name}")) for name in ("now", "max"))
    text = meter.get_attribute("aria-valuetext")
    return 0 < now < most and re.fullmatch(r"\S+ [KMG]iB of \S+ GiB, highest \S+ [KMG]iB", text)


@pytest.fixture(scope="module")
def saved(server, context):
    """A notebook that was saved while its bars were live; its page and kernel are gone."""
    path = write_notebook(server.root / "saved.ipynb", OPEN)
    with lab_page(server, context, path) as lab:
        lab.run_cell(0)
        lab.wait_idle()
        expect(lab.page.locator(".nbl-live")).to_be_visible()
        lab.page.wait_for_timeout(300)
        lab.save()
    return path


def test_a_saved_notebook_shows_the_picture_when_opened_again(saved, open_notebook, artifacts):
    lab = open_notebook(saved)
    still = lab.cell(0).locator("[class^=nbinspect-still]")
    expect(still).to_be_visible()
    expect(still).to_contain_text(re.compile(r"Memory at \d\d:\d\d:\d\d.*this process", re.DOTALL))
    for words in ("Loading widget", "Error displaying"):
        shown = lab.page.get_by_text(words)
        assert not any(shown.nth(n).is_visible() for n in range(shown.count()))
    lab.page.screenshot(path=str(artifacts / "live-reopened.png"))
    assert lab.outside == []


def test_an_untrusted_notebook_shows_the_picture(saved, open_notebook, artifacts):
    notebook = json.loads(saved.read_text())
    assert "image/png" in notebook["cells"][0]["outputs"][1]["data"]
    for output in notebook["cells"][0]["outputs"]:
        output["metadata"] = {"changed": "by someone else"}  # so its signature is void
    foreign = saved.with_stem("foreign")
    foreign.write_text(json.dumps(notebook))
    lab = open_notebook(foreign)
    expect(lab.page.locator("[class^=nbinspect-still] style")).to_have_count(0)
    output = lab.cell(0).locator(".jp-OutputArea")
    expect(output).to_contain_text("this process")
    assert output.locator("img").first.evaluate("e => e.naturalWidth") > 400
    lab.page.screenshot(path=str(artifacts / "live-untrusted.png"))
    assert lab.outside == []


def test_an_exported_page_shows_the_picture_without_a_network(saved, context, artifacts):
    from nbconvert import HTMLExporter

    exported = saved.with_suffix(".html")
    exported.write_text(HTMLExporter().from_filename(str(saved))[0])
    page = context.new_page()
    try:
        page.goto(exported.as_uri(), wait_until="domcontentloaded")
        still = page.locator("[class^=nbinspect-still]")
        expect(still).to_be_visible()
        expect(still).to_contain_text("this process")
        page.screenshot(path=str(artifacts / "live-exported.png"))
    finally:
        page.close()
