"""Reads a snapshot file: nothing in it is executed, and what is wrong with it is said in a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbinspect.snapshots.unpickling import UnreadableError, file_bytes, tried, unpickled

MOST_ENTRIES = 5_000_000
MOST = 1 << 63
UNSIGNED = ("size", "device_free", "time_us")
ZIP = b"PK\x03\x04"


def read(path: Path) -> dict[str, Any]:
    """Read a snapshot file, gzipped or not.

    Returns:
        At least ``segments`` and ``device_traces``, each a list.

    Raises:
        ValueError: it is no snapshot; the message says why, in one line.
        OSError: it cannot be read.
    """
    try:
        data = file_bytes(path)
    except UnreadableError as error:
        raise ValueError(f"{path.name} {error}") from None
    if data.startswith(ZIP):
        raise ValueError(f"{path.name} is a zip archive, as torch.save writes; not a snapshot")
    try:
        tried(data)
        found = unpickled(data)
    except UnreadableError as error:
        raise ValueError(f"{path.name} is no snapshot: {error}") from None
    return _checked(found, path.name)


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
        ValueError: it has none, or a size or time that cannot be.
    """
    value = entry.get(key, default) if isinstance(entry, Mapping) else None
    if type(value) is not int:
        raise ValueError(f"it is no snapshot: an entry's {key} is no number")
    if not 0 <= value < MOST and key.endswith(UNSIGNED):
        raise ValueError(f"it is no snapshot: an entry's {key} is out of range")
    return value


def text(entry: Any, key: str) -> str:
    """Take a text out of an entry, "" if it has none."""
    value = entry.get(key) if isinstance(entry, Mapping) else None
    return value if isinstance(value, str) else ""
