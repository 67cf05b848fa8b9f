"""Small watches and records to run in a kernel: they note what happens to them."""

from __future__ import annotations

import argparse
import signal
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from IPython import get_ipython

from nbinspect.blocks import Text, View
from nbinspect.magics import LINE_MAGICS, WATCHES, LineMagic, WatchMagic
from nbinspect.magics.options import Options, add_output, positive_int
from nbinspect.records import Record

LOG: list[str] = []
OPEN: list[str] = []
ALIVE: weakref.WeakSet[ToyWatch] = weakref.WeakSet()


def traces() -> dict[str, Any]:
    """Tell what nbinspect has in this shell and process, as plain values."""
    shell = get_ipython()
    return {
        "events": {event: len(found) for event, found in shell.events.callbacks.items()},
        "transforms": len(shell.input_transformers_cleanup),
        "tree transforms": len(shell.ast_transformers),
        "token transforms": len(shell.input_transformer_manager.token_transformers),
        "matchers": len(shell.Completer.custom_matchers),
        "printers": sorted(
            map(str, shell.display_formatter.ipython_display_formatter.type_printers)
        ),
        "line magics": sorted(shell.magics_manager.magics["line"]),
        "cell magics": sorted(shell.magics_manager.magics["cell"]),
        "of the shell": sorted(name for name in vars(shell) if "nbinspect" in name),
        "threads": threading.active_count(),
        "open": list(OPEN),
        "alive": len(ALIVE),
    }


@dataclass(frozen=True, slots=True)
class ToyReport(Record):
    name: str
    n: int
    error: str = ""
    broken: bool = False

    def view(self) -> View:
        return (Text((f"{self.name} {self.n} {self.error}",)),)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        if self.broken:
            raise RuntimeError("cannot draw")
        return {"text/plain": f"<{self.name} n={self.n} error={self.error}>"}


class ToyWatch:
    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.n, self.fail = name, options.n, options.fail
        self.error = ""
        ALIVE.add(self)
        self._fail("make")

    def _fail(self, when: str) -> None:
        if self.fail == when:
            raise KeyError(f"toy cannot {when}")

    def __enter__(self) -> ToyWatch:
        self._fail("enter")
        LOG.append(f"open {self.name}")
        OPEN.append(self.name)
        return self

    def __exit__(self, exc_type: Any, error: Any, tb: Any) -> bool:
        LOG.append(f"close {self.name}")
        OPEN.remove(self.name)
        self.error = "" if error is None else type(error).__name__
        self._fail("exit")
        if self.fail == "reraise" and error is not None:
            raise error
        if self.fail == "interrupt":
            signal.raise_signal(signal.SIGINT)
        return True  # must not swallow anything

    @property
    def report(self) -> ToyReport:
        self._fail("report")
        return ToyReport(self.name, self.n, self.error, self.fail == "draw")


def _options(magic: str) -> Options:
    options = Options(magic, f"What does a toy do?\n\nExamples:\n    {magic} -n 3")
    options.add_argument("-n", type=positive_int, default=1)
    options.add_argument("--fail", help="when to fail")
    options.complete("--fail", lambda: ["enter", "exit"])
    add_output(options)
    return options


def _line(options: argparse.Namespace) -> ToyReport | None:
    if options.fail == "value":
        raise ValueError("no such toy: lost")
    if options.fail == "run":
        raise KeyError("toy cannot run")
    return (
        None if options.fail == "none" else ToyReport("line", options.n, "", options.fail == "draw")
    )


def add() -> None:
    """Add two cell magics and a line magic; before the extension is loaded."""
    for name in ("toy", "other"):
        WATCHES[name] = WatchMagic(
            _options(f"%%{name}"), lambda options, name=name: ToyWatch(name, options)
        )
    LINE_MAGICS["toyline"] = LineMagic(_options("%toyline"), _line)
