"""Keeps errors of nbinspect's own out of the user's loop."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from nbinspect import _torch

Method = TypeVar("Method", bound=Callable[..., Any])


class Guarded:
    """Something whose methods run within the user's loop, one at a time.

    Attributes:
        is_broken: measuring has stopped because of an error of ours.
        lock: held while one of our methods runs, which waits for no other thread.
        aside_in: the thread that runs one of our methods, out of sight of modes; 0 for none.
    """

    def __init__(self) -> None:
        self.is_broken = False
        self.lock = threading.RLock()
        self.aside_in = 0

    def failed(self, error: Exception) -> None:
        """Stop what cannot go on, and take down why."""
        raise NotImplementedError


def guarded(method: Method) -> Method:
    """Keep an error of ours from the user's loop: measuring stops, and the report says why."""

    @functools.wraps(method)
    def call(self: Guarded, *args: Any) -> Any:
        if self.is_broken:
            return None
        if self.aside_in == threading.get_ident():  # within another of these
            return method(self, *args)
        with self.lock:  # losses and gradients of threads that train at once meet here
            self.aside_in = threading.get_ident()
            try:
                with _torch.aside():
                    return method(self, *args)
            except Exception as error:
                self.failed(error)
                return None
            finally:
                self.aside_in = 0

    hook: Any = call
    _torch.never_compile(hook.__code__)  # where an optimizer's step is compiled with its hooks
    return cast("Method", hook)
