"""What leak hunting returns: plain values that need no torch to be read or shown."""

from __future__ import annotations

from dataclasses import dataclass

from nbinspect.blocks import View
from nbinspect.records import Holding, Reading, Record, SourceLine


@dataclass(frozen=True, slots=True)
class PinnedFrame:
    """One call that an error's traceback keeps, with its variables.

    Attributes:
        function: the name of the function.
        where: the line at which the error left it.
        names: its variables that lead to tensors, those with the most bytes first.
        size_bytes: bytes that they lead to, each storage once.
        only_here_bytes: of these, what nothing but the error leads to.
        error: the type of the error in whose traceback it stands.
    """

    function: str
    where: SourceLine
    names: tuple[str, ...]
    size_bytes: int
    only_here_bytes: int
    error: str


@dataclass(frozen=True, slots=True)
class LetGo:
    """Something that could be let go of, and the line that does it."""

    what: str
    code: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """An allocation that failed.

    Attributes:
        device: where.
        asked_bytes: what was asked for.
        free_bytes: what the device had left then.
        total_bytes: what it has in all.
        allocated_bytes: held by tensors then.
        unallocated_bytes: reserved by torch's allocator, used by no tensor then.
        setting: the environment variable to set, as a line of code; "" if it would not help or
            is set already.
        holdings: who holds the device's memory, the largest first.
        let_go: the first things to let go of, the largest first.
    """

    device: str
    asked_bytes: Reading
    free_bytes: Reading
    total_bytes: Reading
    allocated_bytes: Reading
    unallocated_bytes: Reading
    setting: str
    holdings: tuple[Holding, ...]
    let_go: tuple[LetGo, ...]


@dataclass(frozen=True, slots=True)
class TracebackMemory(Record):
    """What the last error keeps in memory.

    Attributes:
        error: type and first line of the message, "" if no error is kept.
        frames: calls whose variables lead to tensors, the outermost first; of a chain of errors
            the frames of the last one come first.
        total_bytes: bytes that the error leads to, each storage once.
        only_here_bytes: of these, what nothing but the error leads to.
        held_by: where the error is kept, e.g. ``sys.last_value``.
        dropped: it was asked to let go, and all that only the error kept has died.
        dropped_bytes: what died, by weak reference.
        oom: what was asked and who had it, if the error was for want of memory.
        n_more_frames: frames that were not looked at one by one.
        notes: what is not known, and why.
    """

    error: str
    frames: tuple[PinnedFrame, ...]
    total_bytes: int
    only_here_bytes: int
    held_by: tuple[str, ...]
    dropped: bool = False
    dropped_bytes: int = 0
    oom: OutOfMemory | None = None
    n_more_frames: int = 0
    notes: tuple[str, ...] = ()

    def view(self) -> View:
        """Show what is kept, by whom, and how to let go."""
        from nbinspect.leaks.error_view import error_view

        return error_view(self)
