"""Records: the frozen plain values that every inspector returns.

A record holds str, int, float, bool, bytes, None, tuples and other records: never a tensor, a module,
a frame or an exception. So it keeps nothing of the user's alive, prints the same tomorrow, and
goes through JSON and back without torch.
"""

from __future__ import annotations

import abc
import base64
import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from nbinspect.blocks import Reading, Unavailable, View

__all__ = ["Holding", "Reading", "Record", "SourceLine", "Unavailable", "from_plain", "to_plain"]


def to_plain(value: Any) -> Any:
    """Turn a record into dicts, lists and scalars that strict JSON takes as they are.

    NaN and the infinities, which JSON lacks, become ``{"float": "nan"}`` and the like; bytes, in
    which a record packs very many numbers, become ``{"bytes": ...}`` in base64.

    Raises:
        TypeError: `value` holds something that is no plain value.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if type(value) is float and not math.isfinite(value):
        return {"float": str(value)}
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise TypeError(f"a record holds plain values only, not {type(value).__name__}")


def from_plain(plain: Any, hint: Any) -> Any:
    """Rebuild a value of type `hint` from what `to_plain` made of it.

    Raises:
        TypeError: `plain` does not fit `hint`; the message says where.
    """
    return _read(plain, hint, "")


def _read(plain: Any, hint: Any, path: str) -> Any:
    """Read `plain`, which stands at `path`, as a `hint`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _read_union(plain, args, path)
    if origin is typing.Literal:
        if any(plain == arg and type(plain) is type(arg) for arg in args):
            return plain
    elif origin is tuple:
        if isinstance(plain, list | tuple):
            return _read_tuple(plain, args, path)
    elif dataclasses.is_dataclass(hint):
        if isinstance(plain, Mapping):
            return _read_dataclass(plain, hint, path)
    elif hint in (float, bytes):
        packed = _float(plain) if hint is float else _bytes(plain)
        if packed is not None:
            return packed
    elif hint in (str, int, bool, type(None)) and type(plain) is hint:
        return plain
    raise TypeError(f"{path or 'value'}: {_short(plain)} is no {_name(hint)}")


def _read_union(plain: Any, hints: tuple[Any, ...], path: str) -> Any:
    """Read as the first of `hints` that fits; a whole number stays one where both fit."""
    errors = []
    for hint in hints:
        try:
            return _read(plain, hint, path)
        except TypeError as error:
            errors.append(str(error))
    # The deepest complaint is about the member that fits best.
    raise TypeError(max(errors, key=lambda text: len(text.partition(": ")[0])))


def _read_tuple(plain: Any, args: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    hints = args[:1] * len(plain) if args[1:] == (...,) else args
    if len(plain) != len(hints):
        raise TypeError(f"{path or 'value'}: {len(plain)} items instead of {len(hints)}")
    pairs = enumerate(zip(plain, hints, strict=True))
    return tuple(_read(item, hint, f"{path}[{i}]") for i, (item, hint) in pairs)


def _read_dataclass(plain: Mapping[str, Any], hint: Any, path: str) -> Any:
    hints = _hints(hint)
    where = path or "value"
    if unknown := sorted(set(plain) - set(hints)):
        raise TypeError(f"{where}: {hint.__name__} has no {unknown[0]!r}")
    missing = [f.name for f in dataclasses.fields(hint) if f.name not in plain and _required(f)]
    if missing:
        raise TypeError(f"{where}: {hint.__name__} needs {missing[0]!r}")
    prefix = f"{path}." if path else ""
    return hint(**{k: _read(item, hints[k], prefix + k) for k, item in plain.items()})


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@functools.cache
def _hints(hint: type) -> dict[str, Any]:
    """Give the type of each field; resolving annotations is slow, so it is done once."""
    hints = typing.get_type_hints(hint)
    return {f.name: hints[f.name] for f in dataclasses.fields(hint)}


def _float(plain: Any) -> float | None:
    """Give the float that `plain` stands for, None if it stands for none."""
    if isinstance(plain, Mapping) and set(plain) == {"float"}:
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(plain["float"])
    return float(plain) if type(plain) in (int, float) else None


def _bytes(plain: Any) -> bytes | None:
    """Give the bytes that `plain` stands for, None if it stands for none."""
    text = plain.get("bytes") if isinstance(plain, Mapping) and len(plain) == 1 else None
    return base64.b64decode(text) if isinstance(text, str) else None


def _short(plain: Any) -> str:
    text = repr(plain)
    return text if len(text) <= 60 else text[:59] + "…"


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


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
        """Rebuild the record that `to_dict` was called on; needs no torch.

        Raises:
            TypeError: `plain` is no such record; the message says where it differs.
        """
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

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        """Give what a front end may show; a terminal asks for text alone and pays for no more."""
        ways = {"text/plain": self.text, "text/html": self.html}
        wanted = set(include or ways) - set(exclude or ())
        return {kind: draw() for kind, draw in ways.items() if kind in wanted}


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


def as_code(fqn: str) -> str:
    """Write the name of a module's part as Python takes it: ``model.0.weight`` as ``model[0].weight``."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", fqn)
