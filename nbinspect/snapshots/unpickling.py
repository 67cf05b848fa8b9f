"""Unpickles a snapshot file and nothing else; knows the standard library alone.

Run as a script it tries a file in a process of its own, whose time and memory have a limit: a file
of a few bytes may ask for hours of hashing or for all of the memory before a check in Python comes.
"""

from __future__ import annotations

import gzip
import io
import pickle
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 2 << 30  # unpacked; a file of a day's training has some 100 MB
GZIP = b"\x1f\x8b"
MISREAD = "it is built to be misread"
LEAST_S, BYTES_PER_S = 10, 1 << 20  # a tenth of the speed of a slow machine
LEAST_BYTES, GROWS = 1 << 30, 60  # objects take some ten times the space of their pickle
REFUSED = 3  # exit status


class UnreadableError(ValueError):
    """Why a file was not read, in one line of our own words."""


class _Unpickler(pickle.Unpickler):
    """Takes dicts, lists, strings and numbers, and no global: so nothing can be called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        called = f"{module}.{name}"
        shown = called if called.isprintable() and len(called) < 200 else "something"
        raise UnreadableError(
            f"it names {shown}, which a snapshot never does; nothing of it was run"
        )

    def persistent_load(self, _pid: Any) -> NoReturn:
        raise UnreadableError("it refers to objects outside of it, which a snapshot never does")


def unpickled(data: bytes) -> Any:
    """Give what a pickle holds.

    Raises:
        UnreadableError: it holds anything else than plain values, or cannot be read.
    """
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except UnreadableError:
        raise
    except (EOFError, pickle.UnpicklingError, IndexError, KeyError, AttributeError) as error:
        raise UnreadableError(
            "it is cut off" if _is_cut_off(error) else "it is no pickle"
        ) from None
    except Exception:  # whatever a broken number, text or size leads to
        raise UnreadableError(MISREAD) from None


def _is_cut_off(error: Exception) -> bool:
    return isinstance(error, EOFError) or "truncated" in str(error) or "ran out" in str(error)


def file_bytes(path: Path) -> bytes:
    """Read a file, unpacked if it is gzipped.

    Raises:
        UnreadableError: it is too large, or no whole gzip file.
        OSError: it cannot be read.
    """
    if path.stat().st_size > MOST_BYTES:
        raise UnreadableError("is larger than 2 GiB; record fewer entries")
    with path.open("rb") as file:
        is_gzip = file.read(2) == GZIP
    if not is_gzip:
        return path.read_bytes()
    try:
        with gzip.open(path) as unpacked:
            data = unpacked.read(MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableError(f"is no whole gzip file: {error}") from None
    except MemoryError:
        raise UnreadableError("unpacks to more than there is memory for") from None
    if len(data) > MOST_BYTES:
        raise UnreadableError("unpacks to more than 2 GiB; record fewer entries")
    return data


def tried(data: bytes) -> None:
    """Unpickle in a process of its own, so that what asks for too much ends there.

    Raises:
        UnreadableError: it took more time or memory than any snapshot of its size.

    Cost: starts Python, some 30 ms, and reads twice. Does nothing where no process can be started.
    """
    limit_s = LEAST_S + len(data) / BYTES_PER_S
    command = [sys.executable, "-I", "-S", __file__, str(LEAST_BYTES + GROWS * len(data))]
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnreadableError(MISREAD) from None
    except OSError:
        return
    if done.returncode not in {0, 1, 2}:  # these are Python's own, e.g. a module that is not found
        raise UnreadableError(done.stdout.decode(errors="replace").strip() or MISREAD)


def main(most_bytes: int) -> int:
    """Try what comes in, within so many bytes of memory."""
    with suppress(ImportError, ValueError, OSError):  # systems that have no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    try:
        unpickled(sys.stdin.buffer.read())
    except UnreadableError as error:
        sys.stdout.write(str(error))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
