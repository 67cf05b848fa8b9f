"""Keeps a library's own chatter out of the user's cell."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_STDERR = 2
_one_at_a_time = threading.Lock()


@contextmanager
def without_lines(mark: bytes) -> Iterator[None]:
    """Keep lines that contain `mark` off the process's standard error, and let all others by.

    C++ code writes to the file descriptor, past ``sys.stderr``. What is written meanwhile, by
    other threads too, is held back and comes at the end, in order.

    Cost: five system calls.
    """
    with _one_at_a_time, ExitStack() as open_now:
        try:
            held = open_now.enter_context(tempfile.TemporaryFile())
            stderr = os.dup(_STDERR)
        except OSError:  # no room for a file, or a process without standard error
            yield
            return
        os.dup2(held.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(stderr, _STDERR)
            os.close(stderr)
            held.seek(0)
            os.write(_STDERR, b"".join(line for line in held if mark not in line))
