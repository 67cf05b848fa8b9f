"""Looking at tensors in a running program, without an interrupt in the middle of it."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import AbstractContextManager
from typing import Any

from nbinspect.tensors import looking


class _Undisturbed:
    """See `undisturbed`; a class, since it is entered several times a step."""

    __slots__ = ("_handler", "_looking", "_waiting")

    def __enter__(self) -> None:
        self._handler: Any = None
        self._waiting: list[tuple[int, Any]] = []
        self._looking = looking()
        if threading.get_ident() == threading.main_thread().ident:
            handler = _plain.getsignal(_INTERRUPT)
            if callable(handler):
                self._handler = handler
                _plain.signal(_INTERRUPT, self._wait)
        self._looking.__enter__()

    def __exit__(self, *_: object) -> None:
        self._looking.__exit__(None, None, None)
        if self._handler is not None:
            _plain.signal(_INTERRUPT, self._handler)
            if self._waiting:
                self._handler(*self._waiting[0])

    def _wait(self, *signal_and_frame: Any) -> None:
        self._waiting.append(signal_and_frame)


# What is behind `signal`, which makes an enum of each number; that takes ten times as long.
_plain: Any = sys.modules.get("_signal", signal)
_INTERRUPT = int(signal.SIGINT)


def undisturbed() -> AbstractContextManager[None]:
    """Look at tensors; an interrupt waits until that is done.

    It would leave autograd or a mode switched off for the rest of the session otherwise, if it came
    while that is being switched back. Meant for moments: what takes long must be interruptible.

    Cost: 5 µs.
    """
    return _Undisturbed()
