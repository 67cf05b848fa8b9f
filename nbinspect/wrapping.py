"""Putting a function in the place of another for a while."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

# Of each function of ours: what it is active with, what is under it, and whether that is inherited.
_ours: weakref.WeakKeyDictionary[Any, tuple[list[Any], Any, bool]] = weakref.WeakKeyDictionary()


def wrap(undo: ExitStack, owner: Any, name: str, around: Callable[[Any, Any, Any], Any]) -> None:
    """Put a function in the place of ``owner.name``, until `undo`.

    Args:
        undo: puts the original back, unless somebody has wrapped ours in turn; whoever still has
            ours then calls the original with it, and keeps nothing else alive. Of several of ours
            the last to be undone puts it back.
        owner: a module or a class.
        name: the function's name there.
        around: called as ``around(original, args, kwargs)``.
    """
    original = getattr(owner, name)
    is_inherited = name not in vars(owner)
    active = [around]

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        for one in active:
            return one(original, args, kwargs)
        return original(*args, **kwargs)

    def put_back() -> None:
        active.clear()
        if vars(owner).get(name) is not wrapped:
            return
        below, was_inherited = original, is_inherited
        while below in _ours and not _ours[below][0]:  # undone before it was on top
            _, below, was_inherited = _ours[below]
        if was_inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, below)

    _ours[wrapped] = (active, original, is_inherited)
    setattr(owner, name, wrapped)
    undo.callback(put_back)
