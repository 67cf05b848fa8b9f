"""Records: the frozen plain values that every inspector returns.

A record holds str, int, float, bool, None, tuples and other records: never a tensor, a module,
a frame or an exception. So it keeps nothing of the user's alive, prints the same tomorrow, and
goes through JSON and back without torch.
"""

from __future__ import annotations

import abc
import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from nbinspect.blocks import Reading, Unavailable, View

__all__ = ["Holding", "Reading", "Record", "SourceLine", "Unavailable", "from_plain", "to_plain"]


def to_plain(value: Any) -> Any:
    """Turn a record into dicts, lists and scalars that `json` takes as they are."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(plain: Any, hint: Any) -> Any:
    """Rebuild a value of type `hint` from what `to_plain` made of it.

    Raises:
        TypeError: `plain` does not fit `hint`.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return from_plain(plain, next((arg for arg in args if _fits(plain, arg)), args[0]))
    if not _fits(plain, hint):
        raise TypeError(f"{plain!r} is no {hint}")
    if origin is tuple:
        items = args[:1] * len(plain) if args[1:] == (...,) else args
        return tuple(from_plain(*pair) for pair in zip(plain, items, strict=True))
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{name: from_plain(item, hints[name]) for name, item in plain.items()})
    return float(plain) if hint is float else plain


def _fits(plain: Any, hint: Any) -> bool:
    """Say whether `plain` can be a `hint`, looking one level deep."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        return isinstance(plain, list)
    if origin is typing.Literal:
        return plain in typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        names = {f.name for f in dataclasses.fields(hint)}
        return isinstance(plain, Mapping) and names >= set(plain)
    if hint is float:
        return isinstance(plain, int | float) and not isinstance(plain, bool)
    return type(plain) is hint or (hint is type(None) and plain is None)


class Record(abc.ABC):
    """What every record can do: show itself and go through JSON. Subclasses add `view`."""

    __slots__ = ()

    @abc.abstractmethod
    def view(self) -> View:
        """Describe this record as blocks."""

    def to_dict(self) -> dict[str, Any]:
        """Give this record as JSON-ready dicts, lists and scalars."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Rebuild the record that `to_dict` was called on; needs no torch."""
        record: Self = from_plain(plain, cls)
        return record

    def text(self, width: int = 88) -> str:
        """Render for a terminal of `width` columns."""
        from nbinspect.render.text import to_text

        return to_text(self.view(), width)

    def html(self) -> str:
        """Render as one self-contained HTML fragment."""
        from nbinspect.render.html import to_html

        return to_html(self.view())

    def svg(self) -> str:
        """Render as one self-contained SVG picture."""
        from nbinspect.render.svg import to_svg

        return to_svg(self.view())

    def png(self) -> bytes:
        """Render as a PNG picture."""
        from nbinspect.render.png import to_png

        return to_png(self.view())

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's own code.

    Attributes:
        cell: the number n of ``In[n]``, None outside a notebook.
        file: the file name, "" for a cell.
        lineno: the line, from 1.
        text: the source line, stripped.
    """

    cell: int | None
    file: str
    lineno: int
    text: str

    @property
    def label(self) -> str:
        """``In[7] line 3`` or ``train.py:12``."""
        if self.cell is not None:
            return f"In[{self.cell}] line {self.lineno}"
        return f"{self.file}:{self.lineno}"


@dataclass(frozen=True, slots=True)
class Holding:
    """Bytes that one holder keeps, each storage counted once.

    Attributes:
        kind: PARAMETER, BUFFER, GRADIENT, OPTIMIZER_STATE, SAVED_FOR_BACKWARD, HOOK, DATALOADER,
            VARIABLE, OUT_HISTORY, TRACEBACK, FRAME, CYCLE or OTHER.
        owner: the holder, read from the root to the tensor, e.g. ``model.layers.2.weight``.
        size_bytes: bytes of the storages charged to this holder.
        n_tensors: how many storages that are.
        also: who else holds them, each as ``KIND label``.
        note: what is worth knowing, e.g. "saved by ReluBackward0".
    """

    kind: str
    owner: str
    size_bytes: int
    n_tensors: int
    also: tuple[str, ...] = ()
    note: str = ""
