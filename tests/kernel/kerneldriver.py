"""Drives a real ipykernel: runs cells as a front end does, and gives back what it would show."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Reply:
    """What became of a cell.

    Attributes:
        status: ``ok`` or ``error``, by which Run All goes on or stops.
        error: name and text of the exception in the reply, "" if none.
        shown: (kind, text) of all that was shown, in order; kinds are ``stdout``, ``stderr``,
            ``display``, ``result`` and ``error``. What one stream wrote on end is one text.
        data: the mime bundles of displays and results.
        help: the text of a pager, "" if none.
        count: the cell's number.
    """

    status: str = ""
    error: str = ""
    shown: list[tuple[str, str]] = field(default_factory=list)
    data: list[dict[str, Any]] = field(default_factory=list)
    help: str = ""
    count: int = 0

    def texts(self, kind: str) -> list[str]:
        return [text for shown, text in self.shown if shown == kind]

    def text(self, kind: str) -> str:
        return "".join(self.texts(kind))


class Kernel:
    """One running kernel."""

    def __init__(self) -> None:
        self._manager, self._client = start_new_kernel(kernel_name="python3")

    def stop(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def run(
        self,
        code: str,
        *,
        silent: bool = False,
        on_output: Callable[[str], object] = lambda _: None,
        timeout: float = 60,
    ) -> Reply:
        """Run a cell; `on_output` is called with each text that arrives while it runs."""
        message = self._client.execute(code, silent=silent, allow_stdin=False)
        reply = Reply()
        while (got := self._get(self._client.get_iopub_msg, message, timeout)) is not None:
            kind, content = got["msg_type"], got["content"]
            if content.get("execution_state") == "idle":
                break
            if (text := self._collect(reply, kind, content)) is not None:
                on_output(text)
        content = self._get(self._client.get_shell_msg, message, timeout)["content"]
        reply.status, reply.count = content["status"], content.get("execution_count", 0)
        reply.error = content.get("ename", "") and f"{content['ename']}: {content['evalue']}"
        pages = [p["data"]["text/plain"] for p in content.get("payload", ()) if "data" in p]
        reply.help = _ANSI.sub("", "\n".join(pages))
        return reply

    def interrupted(self, code: str) -> Reply:
        """Run a cell that prints "go" and a newline, and interrupt it, once, at that."""
        printed: list[str] = []  # it may come in pieces

        def interrupt(text: str) -> None:
            before = "".join(printed)
            printed.append(text)
            if "go\n" in before + text and "go\n" not in before:
                self.interrupt()

        return self.run(code, on_output=interrupt)

    def ok(self, code: str) -> Reply:
        """Run a cell that must succeed."""
        reply = self.run(code)
        assert reply.status == "ok", (code, reply)
        return reply

    def value(self, expression: str) -> str:
        """Give the repr of an expression."""
        return self.ok(f"print(repr(({expression})))").text("stdout").removesuffix("\n")

    def complete(self, code: str) -> list[str]:
        message = self._client.complete(code, len(code))
        matches: list[str] = self._get(self._client.get_shell_msg, message)["content"]["matches"]
        return matches

    @staticmethod
    def _get(channel: Callable[..., Any], message: str, timeout: float = 60) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            got = channel(timeout=max(0.1, deadline - time.monotonic()))
            if got["parent_header"].get("msg_id") == message:
                return got

    @staticmethod
    def _collect(reply: Reply, kind: str, content: dict[str, Any]) -> str | None:
        """Add a message to the reply, and give its text; None for one that shows nothing."""
        if kind == "stream":
            name, text = content["name"], content["text"]
            # A write may be sent in pieces, by time; a front end shows them as one text.
            if reply.shown and reply.shown[-1][0] == name:
                reply.shown[-1] = (name, reply.shown[-1][1] + text)
                return text
        elif kind in ("display_data", "execute_result"):
            name = "display" if kind == "display_data" else "result"
            text = content["data"].get("text/plain", "")
            reply.data.append(content["data"])
        elif kind == "error":
            name, text = "error", _ANSI.sub("", "\n".join(content["traceback"]))
        else:
            return None
        reply.shown.append((name, text))
        return text


def start_with_toys() -> Kernel:
    """Start a kernel that has loaded nbinspect, and the watches of `toys`."""
    kernel = Kernel()
    here = str(Path(__file__).parent)
    kernel.ok(f"import sys; sys.path.insert(0, {here!r}); import toys; toys.add()")
    kernel.ok("%load_ext nbinspect")
    return kernel
