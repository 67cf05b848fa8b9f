"""Reads a snapshot file: nothing in it is executed, and what is wrong with it is said in a line."""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 2 << 30  # unpacked; a file of a day's training has some 100 MB
MOST_ENTRIES = 5_000_000
GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"


class _Unpickler(pickle.Unpickler):
    """Takes dicts, lists, strings and numbers, and no global: so nothing can be called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(
            f"it names {module}.{name}, which a snapshot never does; nothing of it was run"
        )

    def persistent_load(self, _pid: Any) -> NoReturn:
        raise ValueError("it refers to objects outside of it, which a snapshot never does")


def read(path: Path) -> dict[str, Any]:
    """Read a snapshot file, gzipped or not.

    Returns:
        At least ``segments`` and ``device_traces``, each a list.

    Raises:
        ValueError: it is no snapshot; the message says why, in one line.
        OSError: it cannot be read.
    """
    data = _bytes(path)
    if data.startswith(ZIP):
        raise ValueError(f"{path.name} is a zip archive, as torch.save writes; not a snapshot")
    try:
        found = _Unpickler(io.BytesIO(data)).load()
    except ValueError as error:
        raise ValueError(f"{path.name} is no snapshot: {error}") from None
    except (EOFError, pickle.UnpicklingError, IndexError, KeyError, AttributeError) as error:
        why = "it is cut off" if _is_cut_off(error) else "it is no pickle"
        raise ValueError(f"{path.name} is no snapshot: {why}") from None
    except (MemoryError, OverflowError, RecursionError, TypeError):
        raise ValueError(f"{path.name} is no snapshot: it is built to be misread") from None
    return _checked(found, path.name)


def _is_cut_off(error: Exception) -> bool:
    return isinstance(error, EOFError) or "truncated" in str(error) or "ran out" in str(error)


def _bytes(path: Path) -> bytes:
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path.name} is larger than 2 GiB; record fewer entries")
    with path.open("rb") as file:
        is_gzip = file.read(2) == GZIP
    if not is_gzip:
        return path.read_bytes()
    try:
        with gzip.open(path) as unpacked:
            data = unpacked.read(MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path.name} is no whole gzip file: {error}") from None
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path.name} unpacks to more than 2 GiB; record fewer entries")
    return data


def _checked(found: Any, name: str) -> dict[str, Any]:
    """See that the parts are there and can be walked in a reasonable time."""
    if isinstance(found, list):  # `torch.cuda.memory_snapshot()`, pickled by itself
        found = {"segments": found}
    if not isinstance(found, Mapping) or not isinstance(found.get("segments"), list):
        raise ValueError(f"{name} is no snapshot: it has no list of segments")
    traces = found.get("device_traces") or []
    segments = found["segments"]
    if not (isinstance(traces, list) and all(isinstance(one, list) for one in traces)):
        raise ValueError(f"{name} is no snapshot: its device_traces are no lists")
    blocks = [one.get("blocks") if isinstance(one, Mapping) else None for one in segments]
    if not all(isinstance(one, list) for one in blocks):
        raise ValueError(f"{name} is no snapshot: a segment has no list of blocks")
    if sum(map(len, traces)) + sum(len(one or ()) for one in blocks) > MOST_ENTRIES:
        raise ValueError(f"{name} has more than {MOST_ENTRIES:,} entries; record fewer")
    return {**found, "segments": segments, "device_traces": traces}


def number(entry: Any, key: str, default: int | None = None) -> int:
    """Take a whole number out of an entry.

    Raises:
        ValueError: it has none.
    """
    value = entry.get(key, default) if isinstance(entry, Mapping) else None
    if type(value) is not int:
        raise ValueError(f"it is no snapshot: an entry's {key} is no number")
    return value


def text(entry: Any, key: str) -> str:
    """Take a text out of an entry, "" if it has none."""
    value = entry.get(key) if isinstance(entry, Mapping) else None
    return value if isinstance(value, str) else ""
