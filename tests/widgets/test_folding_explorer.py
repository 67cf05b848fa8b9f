"""The picture of an autograd graph: what a click unfolds, what colours say."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

import nbinspect
from nbinspect.autograd_graph.records import GraphReport

torch = pytest.importorskip("torch")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def report() -> GraphReport:
    blocks = (torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(12))
    model = torch.nn.Sequential(*blocks, torch.nn.Linear(8, 1))
    loss = model(torch.randn(4, 8)).mean()
    loss.backward(retain_graph=True)
    model[3][0].weight.grad[0, 0] = torch.nan
    return nbinspect.autograd(loss)


@pytest.fixture
def explorer(report):
    found = nbinspect.explore(report)
    yield found
    found.close()


def boxes(explorer) -> dict[str, ET.Element]:
    found = ET.fromstring(explorer.picture["svg"]).iter(f"{SVG}g")
    return {g.get("data-key"): g for g in found if "nbi-node" in g.get("class", "")}


def named(explorer, start: str) -> str:
    return next(k for k, g in boxes(explorer).items() if g.get("aria-label").startswith(start))


def send(explorer, **content) -> None:
    explorer._handle_custom_msg(content, [])


def test_repeats_unfold_into_parts_and_fold_again(explorer):
    first = boxes(explorer)
    key = named(explorer, "model.0 … 11, Sequential x12")
    send(explorer, kind="toggle", key=key)
    assert key in explorer.picture["unfolded"]
    assert len(boxes(explorer)) >= len(first) + 11
    part = named(explorer, "model.5, Sequential")
    send(explorer, kind="toggle", key=part)
    assert named(explorer, "model.5.1, ReLU")
    assert "nbi-frame" in boxes(explorer)[part].get("class")
    send(explorer, kind="toggle", key=key)
    assert set(boxes(explorer)) == set(first)
    assert explorer.picture["said"].startswith("Folded (")


def test_colour_and_marks_follow_what_is_chosen(explorer):
    assert explorer.picture["scale"]["title"] == "saved for backward"
    send(explorer, kind="choose", name="colour", value="gradient")
    assert explorer.picture["scale"]["title"] == "gradient norm"
    alerts = [
        g.get("aria-label") for g in boxes(explorer).values() if "nbi-alert" in g.get("class")
    ]
    assert [label.partition(",")[0] for label in alerts] == ["model.0 … 11"]
    assert all("NaN" in label for label in alerts)
    send(explorer, kind="choose", name="colour", value="none")
    assert explorer.picture["scale"] is None
    send(explorer, kind="choose", name="colour", value="<script>")
    assert explorer.picture["scale"] is None


def test_views_and_leaves_come_and_go(explorer):
    before = len(boxes(explorer))
    send(explorer, kind="choose", name="params", value=True)
    if "model.12.weight" not in explorer.picture["svg"]:
        send(explorer, kind="toggle", key=named(explorer, "model.12, Linear"))
    assert named(explorer, "model.12.weight")
    assert named(explorer, "TBackward0")
    send(explorer, kind="choose", name="params", value=False)
    assert len(boxes(explorer)) == before


def test_a_key_that_is_no_box_does_no_harm(explorer):
    send(explorer, kind="toggle", key="no such box")
    send(explorer, kind="choose", name="nothing", value=1)
    assert boxes(explorer)


def test_it_keeps_nothing_alive_and_shows_text_in_a_terminal(capsys):
    import weakref

    layer = torch.nn.Linear(4, 4)
    loss = layer(torch.randn(2, 4)).mean()
    died = weakref.ref(layer.weight), weakref.ref(loss)
    explorer = nbinspect.explore(nbinspect.autograd(loss))
    del layer, loss
    assert [ref() for ref in died] == [None, None]
    explorer.show()
    assert "How loss was made" in capsys.readouterr().out
    explorer.close()
