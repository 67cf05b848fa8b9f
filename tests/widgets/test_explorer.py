"""The graph of `nbinspect.explore`: messages in, pictures out."""

from __future__ import annotations

import dataclasses
import sys
import threading
import weakref
import xml.etree.ElementTree as ET
from typing import ClassVar

import comm
import pytest

import nbinspect
from nbinspect.blocks import Graph, GraphEdge, GraphNode
from nbinspect.referrers.records import ReferenceReport
from nbinspect.widgets.explorer import GraphExplorer
from nbinspect.widgets.explorer_graph import Found, GrowingGraph

torch = pytest.importorskip("torch")
SVG = "{http://www.w3.org/2000/svg}"


class Shelf:
    """Holds what a test puts there; bound to a global, it is a root."""


shelf = Shelf()
losses = []


@pytest.fixture(autouse=True)
def empty_shelf():
    yield
    vars(shelf).clear()
    losses.clear()


@pytest.fixture
def explore():
    opened = []

    def open_(target, name: str = "t"):
        """Take what gives the object: a frame's own variable would be one more holder."""
        report = nbinspect.refchain(target(), name=name, all=True)
        opened.append(nbinspect.explore(report, target()))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def click(explorer: GraphExplorer, key: str) -> None:
    """Send what the page sends."""
    explorer._handle_custom_msg({"kind": "toggle", "key": key}, [])


def boxes(explorer: GraphExplorer) -> dict[str, ET.Element]:
    found = ET.fromstring(explorer.picture["svg"]).iter(f"{SVG}g")
    return {box.get("data-key"): box for box in found if "nbi-node" in box.get("class", "")}


def key_of(explorer: GraphExplorer, words: str) -> str:
    keys = [key for key, box in boxes(explorer).items() if box.get("aria-label").startswith(words)]
    assert keys, f"no box {words!r} among {[b.get('aria-label') for b in boxes(explorer).values()]}"
    return keys[0]


def unfolds(explorer: GraphExplorer, key: str) -> bool:
    css = boxes(explorer)[key].get("class").split()
    return "nbi-unfold" in css and "nbi-stub" not in css


def plant() -> weakref.ref:
    tensor = torch.ones(64, 256)
    shelf.kept = {"k": [tensor]}
    return weakref.ref(tensor)


def test_three_levels_unfold_and_fold_again(explore):
    target = plant()
    explorer = explore(target)
    first = explorer.picture["svg"]
    assert unfolds(explorer, "target")
    seen = [set(boxes(explorer))]
    for at in ("t", "list", "dict"):
        key = key_of(explorer, at)
        click(explorer, key)
        assert explorer.picture["error"] == ""
        assert key in explorer.picture["unfolded"]
        seen.append(set(boxes(explorer)))
        assert seen[-1] > seen[-2]
    click(explorer, key_of(explorer, "list"))
    assert set(boxes(explorer)) == seen[1], "folding takes what came with what came with it"
    click(explorer, "target")
    assert explorer.picture["svg"] == first
    assert explorer.picture["unfolded"] == []


def hover(explorer: GraphExplorer, words: str) -> list[str]:
    """Give what is said of a box to who points at it, one fact a line."""
    title = boxes(explorer)[key_of(explorer, words)].find(f"{SVG}title")
    return title.text.split("\n")


class Talkative(list):
    """All that it can be asked is its user's code."""

    asked: ClassVar[list[str]] = []

    def _ask(self, *_: object) -> int:
        self.asked.append("asked")
        return 1

    __sizeof__ = __len__ = __repr__ = __str__ = __iter__ = __getitem__ = __hash__ = _ask
    __class__ = property(_ask)


def plant_talkative() -> weakref.ref:
    shelf.kept = {"k": Talkative([torch.ones(64, 256)])}
    return weakref.ref(list.__getitem__(shelf.kept["k"], 0))


def test_every_box_says_what_it_is_its_bytes_what_goes_with_it_and_its_cell(explore):
    explorer = explore(plant_talkative())
    for at in ("t", "Talkative", "dict"):
        click(explorer, key_of(explorer, at))
        assert explorer.picture["error"] == ""
    unknown = "which cell made it is not known"
    goes = "64.0 KiB would be freed with it"
    size = list.__sizeof__(shelf.kept["k"]) + sys.getsizeof(vars(shelf.kept["k"]))
    assert hover(explorer, "Talkative") == ["Talkative", f"{size} bytes by itself", goes, unknown]
    size = sys.getsizeof(shelf.kept)
    assert hover(explorer, "dict") == ["dict", f"{size} bytes by itself", goes, unknown]
    assert hover(explorer, "t") == [
        *("t", "64x256 float32", "65\u202f536 bytes", "on cpu"),
        *(goes, unknown),
    ]
    assert Talkative.asked == []


def test_a_box_says_the_same_whether_it_was_there_first_or_was_unfolded(explore):
    leaf = torch.ones(8, requires_grad=True)
    losses.append((leaf**2).sum())
    names, target = "tests.widgets.test_explorer", weakref.ref(leaf)
    del leaf
    explorer = explore(target)
    first = hover(explorer, f"{names}.losses[0]"), hover(explorer, "PowBackward0")
    assert first[0][1:3] == ["Tensor scalar float32", "4 bytes"]
    assert first[0][-2:] == ["36 B would be freed with it", "which cell made it is not known"]
    assert first[1][1:] == [
        *("its own bytes are not known", "32 B would be freed with it"),
        "which cell made it is not known",
    ]
    before = {node.key: (node.size_bytes, node.detail) for node in explorer._growing.graph().nodes}
    for at in ("t", "PowBackward0", "grad_fn SumBackward0"):
        click(explorer, key_of(explorer, at))
        found = explorer._growing.found.pop(key_of(explorer, at)).nodes
        same = [node for node in found if node.key in before]
        assert same, "the chain leads through one of them"
        assert [(one.size_bytes, one.detail) for one in same] == [before[one.key] for one in same]


def test_a_variable_and_a_running_call_say_it_too(explore):
    def hold() -> GraphExplorer:
        held = [torch.ones(16)]
        explorer = explore(lambda: held[0])
        click(explorer, "target")
        click(explorer, key_of(explorer, "list"))
        return explorer

    explorer = hold()
    assert explorer.picture["error"] == ""
    calls = [k for k, b in boxes(explorer).items() if b.get("aria-label").startswith("frame hold")]
    assert calls, "both the first picture and the unfolded one show it"
    for key in calls:
        facts = boxes(explorer)[key].find(f"{SVG}title").text.split("\n")[1:]
        assert facts[:2] == [
            "its own bytes are not known",
            "what would be freed with it is not known",
        ]
        assert facts[2].startswith("defined in ")
        assert "test_explorer.py" in facts[2]
    shelf.kept = [torch.ones(16)]
    losses.append(shelf.kept)
    explorer = explore(lambda: losses)
    click(explorer, "target")
    said = hover(explorer, "tests.widgets.test_explorer.losses")
    assert f"{sys.getsizeof(losses)} bytes by itself" in said
    assert "no tensor would be freed with it" in said, "the shelf has it too"


def test_an_object_has_one_box_whichever_way_it_was_found(explore):
    leaf = torch.ones(8, requires_grad=True) * 2
    losses.append((leaf**2).sum())
    shelf.leaf = leaf
    target = weakref.ref(leaf)
    del leaf
    explorer = explore(target)
    before = set(boxes(explorer))
    click(explorer, key_of(explorer, "PowBackward0"))
    assert set(boxes(explorer)) == before
    assert "already in the picture" in explorer.picture["said"]


def test_holders_that_are_no_direct_step_are_found(explore):
    def plant_hook() -> weakref.ref:
        tensor = torch.ones(16)
        shelf.hook = lambda: tensor
        return weakref.ref(tensor)

    explorer = explore(plant_hook())
    click(explorer, key_of(explorer, "tests.widgets.test_explorer.shelf.hook"))
    assert explorer.picture["error"] == "", "between function and tensor there is a cell"
    assert "dict" in {box.get("aria-label").split(",")[0] for box in boxes(explorer).values()}


def test_nothing_is_kept_alive_and_no_count_changes(explore):
    target = plant()
    counts = sys.getrefcount(target()), target()._use_count()
    explorer = explore(target)
    for at in ("t", "list", "dict"):
        click(explorer, key_of(explorer, at))
    assert (sys.getrefcount(target()), target()._use_count()) == counts
    vars(shelf).clear()
    assert target() is None, "dies at once, without the collector"


def test_what_is_gone_is_said_and_stays_drawn(explore):
    target = plant()
    explorer = explore(target)
    click(explorer, "target")
    key = key_of(explorer, "list")
    shelf.other, shelf.kept["k"] = shelf.kept["k"].pop(), []
    click(explorer, key)
    assert explorer.picture["gone"] == [key]
    assert explorer.picture["error"] == "Gone: the list does not hold it any more."
    assert "gone: list" in boxes(explorer)[key].get("aria-label")
    assert not unfolds(explorer, key)
    assert unfolds(explorer, "target"), "the rest goes on"


def test_when_the_target_is_gone_the_picture_stays_as_it_was(explore):
    explorer = explore(plant())
    click(explorer, "target")
    shown = set(boxes(explorer))
    vars(shelf).clear()
    click(explorer, key_of(explorer, "list"))
    assert explorer.picture["error"] == "t is gone: nothing holds it. The picture shows how it was."
    assert explorer.picture["gone"] == ["target"]
    assert set(boxes(explorer)) == shown
    assert not any(unfolds(explorer, key) for key in shown)
    click(explorer, "target")
    assert set(boxes(explorer)) == shown


@pytest.mark.parametrize("target", [[1, 2], {"a": 1}, (3, [4]), 12345678])
def test_what_no_weak_reference_can_point_to_is_found_by_its_way(explore, target):
    shelf.value = {"in": [target]}
    kind = type(target).__name__
    del target
    explorer = explore(lambda: shelf.value["in"][0])
    assert f"No weak reference can point to a {kind}" in explorer.picture["caption"]
    assert "down from tests.widgets.test_explorer.shelf" in explorer.picture["caption"]
    click(explorer, "target")
    assert explorer.picture["error"] == ""
    click(explorer, key_of(explorer, "list"))
    assert "dict" in {box.get("aria-label").split(",")[0] for box in boxes(explorer).values()}
    shelf.value["in"][0] = "another"
    click(explorer, key_of(explorer, "dict"))
    gone = "t is gone: it is not where it was any more. The picture shows how it was."
    assert explorer.picture["error"] == gone


def test_what_no_weak_reference_can_point_to_lives_no_longer(explore):
    inner = torch.ones(3)
    probe = weakref.ref(inner)
    shelf.value = {"in": [[inner], 3]}
    del inner
    explorer = explore(lambda: shelf.value["in"][0])
    before = sys.getrefcount(shelf.value["in"][0])
    click(explorer, "target")
    click(explorer, key_of(explorer, "list"))
    after = sys.getrefcount(shelf.value["in"][0])
    assert after == before
    shelf.value["in"][0] = ()  # another type, wherever it lies
    assert probe() is None, "dies at once, without the collector"
    click(explorer, key_of(explorer, "dict"))
    assert explorer.picture["error"].startswith("t is gone: it is not where it was any more.")


def test_without_the_object_it_is_found_by_its_way():
    report = nbinspect.refchain(plant()(), name="t")
    explorer = nbinspect.explore(report)
    assert "weak" not in explorer.picture["caption"]
    click(explorer, "target")
    assert explorer.picture["error"] == ""
    click(explorer, key_of(explorer, "list"))
    assert "dict" in {box.get("aria-label").split(",")[0] for box in boxes(explorer).values()}
    explorer.close()


def test_objgraph_draws_its_part():
    target = plant()
    report = nbinspect.refchain(target(), name="t")
    counts = sys.getrefcount(target()), target()._use_count()
    dot = report.to_objgraph(max_depth=4, refcounts=True).source
    assert (sys.getrefcount(target()), target()._use_count()) == counts
    assert dot.startswith("digraph ObjectGraph")
    assert [word for word in ("Tensor", "list", "dict", "Shelf") if word not in dot] == []
    assert "_held_by" not in dot
    vars(shelf).clear()
    with pytest.raises(LookupError, match="not where it was any more"):
        report.to_objgraph()
    with pytest.raises(LookupError, match="no name leads to it"):
        nbinspect.refchain(3).to_objgraph()


def test_what_neither_way_leads_to_stays_a_picture(explore):
    def inside():
        value = [1, 2]
        return nbinspect.explore(nbinspect.refchain(value, name="t"), value)

    explorer = inside()
    assert "this list is neither" in explorer.picture["caption"]
    assert not any(unfolds(explorer, key) for key in boxes(explorer))
    serial = explorer.picture["serial"]
    click(explorer, "target")
    assert explorer.picture["serial"] == serial + 1, "the page waits for an answer"
    explorer.close()


def test_an_object_whose_holders_were_not_found_says_what_is_known():
    report = dataclasses.replace(nbinspect.refchain(plant()(), name="t"), chains=())
    explorer = nbinspect.explore(report)
    unknown = "what would be freed with it is not known", "which cell made it is not known"
    size = "65\u202f536 bytes"
    assert hover(explorer, "t") == ["t", "64x256 float32", size, "on cpu", *unknown]
    explorer.close()


def test_an_object_that_holds_itself(explore):
    shelf.own = Shelf()
    shelf.own.me = shelf.own
    explorer = explore(weakref.ref(shelf.own))
    click(explorer, "target")
    for _ in range(3):
        for key in list(boxes(explorer)):
            if unfolds(explorer, key) and key not in explorer.picture["unfolded"]:
                click(explorer, key)
    assert explorer.picture["error"] == ""
    assert len([n for n in explorer._growing.graph().nodes if n.role == "target"]) == 1


HOSTILE = "</text><script>alert(1)</script>\u202e\n\0\"'&amp;"


def test_hostile_labels_are_text(explore):
    target = plant()
    shelf.kept[HOSTILE] = shelf.kept.pop("k")
    explorer = explore(target, name=HOSTILE)
    for key in [key for key in boxes(explorer) if unfolds(explorer, key)]:
        click(explorer, key)
    click(explorer, key_of(explorer, "list"))
    assert explorer.picture["error"] == ""
    assert "<script" not in explorer.picture["svg"]
    texts = [text.text or "" for text in ET.fromstring(explorer.picture["svg"]).iter(f"{SVG}text")]
    assert any("script" in text for text in texts)
    assert not {"\n", "\0", "\u202e"} & set(explorer.picture["title"] + "".join(boxes(explorer)))


class Made:
    """Neighbours that a test makes up."""

    def __init__(self, n: int = 0, error: Exception | None = None) -> None:
        self.n, self.error = n, error

    def of(self, key: str) -> Found:
        if self.error:
            raise self.error
        new = tuple(GraphNode(f"{key}/{i}", f"holder {i}", can_unfold=True) for i in range(self.n))
        return Found(new, tuple(GraphEdge(node.key, key) for node in new))

    def ended(self) -> str:
        return ""


def made(neighbours: Made, n_first: int = 0) -> GraphExplorer:
    target = GraphNode("target", "t", role="target", can_unfold=True)
    roots = tuple(
        GraphNode(f"r{i}", f"a_root_with_a_long_name_{i}", role="root") for i in range(n_first)
    )
    arrows = tuple(GraphEdge(root.key, "target") for root in roots)
    report = ReferenceReport.from_dict(nbinspect.refchain(None).to_dict())
    return GraphExplorer(Graph("made up", (target, *roots), arrows), neighbours, report)


def test_an_error_is_said_with_its_reason_and_may_pass():
    neighbours = Made(2, RuntimeError("<b>no</b>"))
    explorer = made(neighbours)
    click(explorer, "target")
    assert explorer.picture["error"] == "No answer: RuntimeError: <b>no</b>"
    assert unfolds(explorer, "target")
    neighbours.error = None
    click(explorer, "target")
    assert explorer.picture["error"] == ""
    assert len(boxes(explorer)) == 3
    explorer.close()


def test_what_had_no_room_is_shown_on_a_click_on_its_stub():
    explorer = made(Made(), n_first=20)
    stub = next(key for key, box in boxes(explorer).items() if "nbi-stub" in box.get("class"))
    assert explorer.picture["width"] < 900
    click(explorer, stub)
    assert len(boxes(explorer)) == 21
    explorer.close()


def test_more_than_a_picture_takes_is_said():
    explorer = made(Made(), n_first=200)
    stub = next(key for key, box in boxes(explorer).items() if "nbi-stub" in box.get("class"))
    click(explorer, stub)
    assert len(boxes(explorer)) <= 150
    assert "150 boxes at most" in explorer.picture["error"]
    explorer.close()


def test_folding_one_of_two_ways_leaves_what_the_other_shows():
    def node(key: str) -> GraphNode:
        return GraphNode(key, key)

    growing = GrowingGraph(Graph("", (node("a"), node("b")), ()))
    shared = Found((node("c"),), (GraphEdge("c", "a"),))
    assert growing.unfold("a", shared) == 1
    assert growing.unfold("b", Found((node("c"),), (GraphEdge("c", "b"),))) == 0
    assert growing.unfold("c", Found((node("d"),), ())) == 1
    growing.fold("a")
    assert [one.key for one in growing.graph().nodes] == ["a", "b", "c", "d"]
    growing.fold("b")
    assert [one.key for one in growing.graph().nodes] == ["a", "b"]
    assert growing.found == {}


def test_other_messages_are_ignored_and_unknown_boxes_do_no_harm(explore):
    explorer = explore(plant())
    serial = explorer.picture["serial"]
    explorer._handle_custom_msg({"kind": "something else"}, [])
    explorer._handle_custom_msg({}, [])
    assert explorer.picture["serial"] == serial
    shown = set(boxes(explorer))
    click(explorer, "no such box")
    assert set(boxes(explorer)) == shown


def test_it_leaves_no_thread_and_no_comm_and_a_terminal_gets_the_text(explore, capsys):
    comms, threads = len(comm.get_comm_manager().comms), threading.active_count()
    explorer = explore(plant())
    explorer.show()
    assert "shelf.kept['k'][0]" in capsys.readouterr().out
    explorer.close()
    explorer.close()
    assert len(comm.get_comm_manager().comms) == comms
    assert threading.active_count() == threads
