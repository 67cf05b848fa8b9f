"""Where Graphviz puts boxes and arrows: in a child process that can be stopped at any time.

Layout of an unlucky graph takes minutes, and no call can be given up inside this process; a child
can be killed. Who has no `dot` program has pygraphviz's own Graphviz, which comes with nbinspect.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

TIMEOUT_S = 5.0
MAX_REASON = 120
_NO_WINDOW = getattr(subprocess, "CREATE_NO_WINDOW", 0)  # Windows would flash a console

_PYGRAPHVIZ = """import sys, pygraphviz
graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
sys.stdout.buffer.write(graph.draw(format="svg", prog="dot"))"""


@dataclass(frozen=True, slots=True)
class Layout:
    """What became of a layout.

    Attributes:
        svg: the picture that Graphviz drew, None if it drew none.
        engine: who drew it, e.g. ``Graphviz dot``; "" if nobody did.
        why: why there is no picture, "" if there is one.
    """

    svg: str | None
    engine: str
    why: str


def layout(dot: str, timeout_s: float = TIMEOUT_S) -> Layout:
    """Have Graphviz lay out DOT text, or say why it could not.

    Args:
        dot: the graph; `nbinspect.render.dot.to_dot` writes it.
        timeout_s: seconds that it may take.

    Cost: a process, 0.1 s for small graphs; when the time is over it is killed.
    Source: `dot` on PATH, else the Graphviz inside pygraphviz.
    """
    commands = _commands()
    why = "" if commands else "neither `dot` nor pygraphviz is installed"
    for engine, command in commands:
        try:
            code, out, err = _run(command, dot.encode(), timeout_s)
        except subprocess.TimeoutExpired:  # the others are no faster
            return Layout(None, "", f"{engine} needed more than {timeout_s:g} s")
        except OSError as error:
            why = why or f"{engine} could not be started: {error.strerror or error}"
            continue
        svg = out.decode(errors="replace")
        if code == 0 and "<svg" in svg:
            return Layout(svg[svg.index("<svg") :], engine, "")
        why = why or _reason(engine, code, err)
    return Layout(None, "", why)


def _commands() -> list[tuple[str, list[str]]]:
    """Find who can do it, best first."""
    found = []
    if program := shutil.which("dot"):
        found.append(("Graphviz dot", [program, "-Tsvg"]))
    if sys.executable and importlib.util.find_spec("pygraphviz") is not None:
        # -P: a file of the user's beside the notebook is no module of ours.
        found.append(("Graphviz dot (pygraphviz)", [sys.executable, "-P", "-c", _PYGRAPHVIZ]))
    return found


def _run(command: list[str], given: bytes, timeout_s: float) -> tuple[int, bytes, bytes]:
    """Run a program; however this ends, neither it nor its children are left."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=os.name == "posix",
        creationflags=_NO_WINDOW,
    )
    try:
        out, err = child.communicate(given, timeout_s)
    except BaseException:  # an interrupt too
        _kill(child)
        child.communicate()
        raise
    return child.returncode, out, err


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a child with all it started: a `dot` may be a script around another."""
    with suppress(ProcessLookupError):
        if os.name == "posix":
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()


def _reason(engine: str, code: int, err: bytes) -> str:
    lines = err.decode(errors="replace").strip().splitlines()
    last = lines[-1].strip()[-MAX_REASON:] if lines else "no reason given"
    return f"{engine} failed (status {code}): {last}"
