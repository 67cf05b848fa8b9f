"""Graphviz in a child process: what it draws is read, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from made_up_graphs import chain, crowd, cycle, three_roots

from nbinspect.render.dot import to_dot
from nbinspect.render.html import to_html
from nbinspect.render.layers import OWN_ENGINE
from nbinspect.render.layout import layout
from nbinspect.render.picture import caption, placed, placed_narrow

CHAIN = to_dot(chain())
POSIX = pytest.mark.skipif(os.name != "posix", reason="the fake dot is a shell script")


@pytest.fixture(autouse=True)
def nothing_remembered():
    yield
    placed.cache_clear()
    placed_narrow.cache_clear()


@pytest.fixture
def fake_dot(tmp_path, monkeypatch):
    """Put a program called dot first on PATH."""

    def put(script: str) -> Path:
        program = tmp_path / "dot"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return tmp_path

    return put


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def gone(pid: int) -> bool:
    """Wait until a process has died; a zombie is dead, who inherits it may take a while."""
    for _ in range(200):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


def test_pygraphviz_draws_where_no_dot_is(monkeypatch):
    monkeypatch.setenv("PATH", "")
    found = layout(CHAIN)
    assert (found.engine, found.why) == ("Graphviz dot (pygraphviz)", "")
    assert found.svg.startswith("<svg")
    assert "MulBackward0" in found.svg


@POSIX
def test_dot_on_the_path_comes_first(fake_dot):
    fake_dot('cat > "$(dirname "$0")/given"; echo "<?xml?><svg>$1</svg>"')
    found = layout(CHAIN)
    assert (found.svg, found.engine, found.why) == ("<svg>-Tsvg</svg>\n", "Graphviz dot", "")


@POSIX
def test_dot_is_given_the_text(fake_dot):
    place = fake_dot('cat > "$(dirname "$0")/given"; echo "<svg/>"')
    layout(CHAIN)
    assert (place / "given").read_text() == CHAIN


@POSIX
def test_a_slow_dot_is_killed_with_its_children(fake_dot):
    place = fake_dot('sleep 60 & echo $! > "$(dirname "$0")/pid"; wait')
    before, threads = children(), threading.active_count()
    began = time.monotonic()
    found = layout(CHAIN, timeout_s=0.5)
    assert time.monotonic() - began < 3
    assert (found.svg, found.why) == (None, "Graphviz dot needed more than 0.5 s")
    assert children() == before
    assert threading.active_count() == threads
    assert gone(int((place / "pid").read_text()))


@POSIX
def test_an_interrupt_kills_it_too(fake_dot):
    place = fake_dot('echo $$ > "$(dirname "$0")/pid"; exec sleep 60')
    before = children()
    # A process that was started in the background ignores it.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            layout(CHAIN, timeout_s=30)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert children() == before
    assert gone(int((place / "pid").read_text()))


@POSIX
@pytest.mark.parametrize("script", ["echo 'no such font' >&2; exit 3", "echo nonsense", "exit 0"])
def test_a_broken_dot_gives_way_to_pygraphviz(fake_dot, script):
    fake_dot(script)
    found = layout(CHAIN)
    assert found.engine == "Graphviz dot (pygraphviz)"
    assert placed(chain()).why == ""


def test_text_that_is_no_graph_is_refused_with_a_reason(monkeypatch):
    monkeypatch.setenv("PATH", "")
    found = layout("digraph {{{")
    assert found.svg is None
    assert found.why.startswith("Graphviz dot (pygraphviz) failed (status 1): ")


@POSIX
def test_a_picture_that_cannot_be_read_is_drawn_by_our_own_layout(fake_dot):
    fake_dot("cat > /dev/null; echo '<svg viewBox=\"0 0 1 1\"></svg>'")
    drawn = placed(chain())
    assert drawn.engine == OWN_ENGINE
    assert caption(chain(), drawn) == (
        "Drawn by nbinspect's own layout because Graphviz dot drew what cannot be read: 'graph'."
    )


@POSIX
def test_a_slow_dot_is_waited_for_once(fake_dot, monkeypatch):
    monkeypatch.setattr("nbinspect.render.picture.TIMEOUT_S", 0.4)
    place = fake_dot('echo x >> "$(dirname "$0")/count"; exec sleep 60')
    page = to_html((crowd(300),))
    assert "own layout because Graphviz dot needed more than 0.4 s" in page
    assert (place / "count").read_text() == "x\n"


def test_without_graphviz_our_own_layout_draws():
    """-S leaves out what is installed, pygraphviz too; the dot package is put back by hand."""
    import graphviz

    paths = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
    code = f"""
import sys
sys.path[:0] = {paths!r}
import importlib.util
place = {str(Path(graphviz.__file__).parent)!r}
spec = importlib.util.spec_from_file_location("graphviz", place + "/__init__.py", submodule_search_locations=[place])
sys.modules["graphviz"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from made_up_graphs import three_roots
from nbinspect.render.graph_svg import to_graph_svg
print(to_graph_svg(three_roots()).caption)
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PATH": "", "SYSTEMROOT": os.environ.get("SYSTEMROOT", "")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "Drawn by nbinspect's own layout because neither `dot` nor pygraphviz is installed.\n"
    )


def test_a_file_beside_the_notebook_is_no_module_of_ours(tmp_path, monkeypatch):
    (tmp_path / "pygraphviz.py").write_text("raise SystemExit('the wrong file')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert layout(CHAIN).why == ""


@pytest.mark.parametrize(
    "graph", [chain(), three_roots(), cycle()], ids=["chain", "roots", "cycle"]
)
def test_graphviz_keeps_what_it_is_told(graph):
    drawn = placed(graph)
    assert [box.node for box in drawn.boxes] == list(graph.nodes)
    assert [arrow.edge for arrow in drawn.arrows] == list(graph.edges)
