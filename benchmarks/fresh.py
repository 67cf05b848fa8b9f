"""Runs a measurement where nothing has run before: in a new process, or in a new notebook."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parent.parent


def in_process(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function of this package in a new process; what it takes and gives is JSON."""
    name = f"{function.__module__}:{function.__qualname__}"
    command = [sys.executable, "-m", "benchmarks.fresh", name, json.dumps(arguments)]
    return json.loads(output(command))


def output(command: list[str]) -> str:
    """Run a command and give the last line that it printed.

    Raises:
        RuntimeError: it failed; the message is what it said.
    """
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} failed:\n{done.stderr[-2000:]}")
    return done.stdout.strip().splitlines()[-1]


class Notebook:
    """A running ipykernel, as a front end would start it."""

    def __enter__(self) -> Self:
        from jupyter_client.manager import start_new_kernel

        self._manager, self._client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def run(self, cell: str) -> str:
        """Run a cell and give what it printed.

        Raises:
            RuntimeError: the cell failed.
        """
        printed: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])

        reply = self._client.execute_interactive(cell, output_hook=hook, timeout=600)["content"]
        if reply["status"] != "ok":
            raise RuntimeError(f"{cell}\n{reply.get('ename')}: {reply.get('evalue')}")
        return "".join(printed)

    def call(self, expression: str) -> Any:
        """Give the value of an expression, which must be JSON."""
        printed = self.run(f"import json; print(json.dumps({expression}))")
        return json.loads(printed.strip().splitlines()[-1])


def _main() -> None:
    module, _, name = sys.argv[1].partition(":")
    print(json.dumps(getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))))


if __name__ == "__main__":
    _main()
