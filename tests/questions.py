"""A fresh process that answers questions, one after the other: lines of JSON in, and lines out.

What it is asked about lives in its `__main__`, as a notebook's variables do.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LAST_ERROR = ("last_type", "last_value", "last_traceback", "last_exc")


class Answerer:
    """A process that runs a script, which answers each line that it reads."""

    def __init__(self, script: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `stop`
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )

    def answer(self, question: Any) -> Any:
        """Ask, and wait for the answer.

        Raises:
            AssertionError: the process has died, with the end of what it wrote.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise AssertionError(self._errors.read()[-3000:])
        return json.loads(line)

    def stop(self) -> None:
        self._process.communicate()
        self._errors.close()


@contextmanager
def forgetting() -> Iterator[dict[str, Any]]:
    """Give the names of `__main__`, and take out of them what was added meanwhile."""
    names = vars(sys.modules["__main__"])
    before = set(names)
    try:
        yield names
    finally:
        for name in set(names) - before:
            del names[name]
        for name in LAST_ERROR:
            if hasattr(sys, name):
                delattr(sys, name)
        gc.enable()
        gc.collect()
