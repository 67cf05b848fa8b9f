"""What leak hunting returns: plain values that need no torch to be read or shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from nbinspect.blocks import Unavailable, View
from nbinspect.records import Holding, Reading, Record, SourceLine

SHARED_MEMORY = "shared memory"  # what processes share, in place of a device
LEAST_RISES = 3
LEAST_RISE_BYTES = 2 << 20  # of every repetition; watching leaves some memory in pieces too
LEAST_REST_BYTES = 8 << 20
LETS_GO = " `{}` lets go of what there is."  # the end of a mend that has a line of code


@dataclass(frozen=True, slots=True)
class PinnedFrame:
    """One call that an error's traceback keeps, with its variables.

    Attributes:
        function: the name of the function; "" for what the error holds itself.
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
        device: where; ``shared memory`` for what processes share, as loaders' workers do.
        asked_bytes: what was asked for.
        free_bytes: what the device had left then.
        total_bytes: what it has in all.
        allocated_bytes: held by tensors then; of shared memory what is in use.
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


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that each repetition leaves behind, held by one holder.

    Attributes:
        bytes_per_run: bytes that a repetition added, on average.
        tensors_per_run: storages that it added.
        items_per_run: items that it added to the holder, 0 if the holder is no container.
        holder: what keeps it, e.g. ``losses``, a list whose items keep it.
        container: the built-in type of the holder, e.g. ``list``; "" if it is none.
        kind: holder kind of most of it.
        device: where it is.
        where: the line that allocated most of it, None if no line of yours did.
        chain: one chain of references, from a root down to a tensor of it; "" if none was found.
        mend: a sentence, with a line of code in backquotes where there is one.
        code: the line that lets go of what has grown, "" if there is none.
        pattern: the known mistake that it looks like, in a few words.
        state: ``live``: names lead to it; ``garbage``: a cycle that ``gc.collect()`` frees;
            ``uncollectable``: a cycle through C++ that nothing frees.
        item: the type of what it gets, or of the value that gets longer; "" for tensors.
    """

    bytes_per_run: int
    tensors_per_run: float
    items_per_run: float
    holder: str
    container: str
    kind: str
    device: str
    where: SourceLine | None
    chain: str
    mend: str
    code: str
    pattern: str
    state: str
    item: str = ""


@dataclass(frozen=True, slots=True)
class DeviceGrowth:
    """What one kind of memory held after each repetition, the warm-up's end first.

    Attributes:
        name: a device, or ``pinned host memory``.
        bytes_per_run: what a repetition added, on average; what came and went evens out.
        tensors_per_run: the same in storages.
        sizes_bytes: bytes held.
    """

    name: str
    bytes_per_run: int
    tensors_per_run: float
    sizes_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ObjectGrowth:
    """Python objects of one type whose number rises with each repetition.

    Attributes:
        type_name: with its module.
        per_run: how many a repetition adds.
        bytes_per_run: their own bytes, without what they refer to.
        n_objects: how many there are now.
        holder: a chain of references to one that the last repetition added.
        runs: ``thread`` or ``process`` if they stand for one that is still running.
    """

    type_name: str
    per_run: float
    bytes_per_run: int
    n_objects: int
    holder: str
    runs: str = ""


@dataclass(frozen=True, slots=True)
class PartGrowth:
    """One part of the step, repeated alone.

    Attributes:
        part: ``loader``, ``forward``, ``forward and backward`` or ``whole step``.
        bytes_per_run: what a repetition left behind, or why the part could not be run.
        tensors_per_run: the same in storages.
        workers_bytes_per_run: the most that the loader's worker processes grew by over one pass, or
            why that is not known; None if it has no workers.
        holder: what keeps most of it, "" if nothing grows.
        suspect: what that says of where the fault is.
    """

    part: str
    bytes_per_run: Reading
    tensors_per_run: float
    workers_bytes_per_run: Reading | None
    holder: str
    suspect: str


@dataclass(frozen=True, slots=True)
class LeakReport(Record):
    """What grows with each repetition.

    Attributes:
        growths: by holder, the most bytes first.
        by_part: one row for each part of the step, with ``isolate``.
        healthy: nothing grows: no holder, not the process beyond what holders explain, and
            torch.compile does not compile again in every repetition.
        n: repetitions that were compared.
        n_warmup: repetitions before them.
        devices: what each device held after each repetition.
        objects: types of Python objects that grow.
        process_bytes: resident set of the process after each repetition.
        collected_bytes: what ``gc.collect()`` freed at the end, if it was asked to.
        error: type of the exception that ended it early, "" if none.
        duration_s: how long it took.
        notes: what is not known, and why.
        graphs_per_run: graphs that torch.compile compiled in a repetition; 0 if not in every one.
    """

    growths: tuple[Growth, ...]
    by_part: tuple[PartGrowth, ...]
    healthy: bool
    n: int
    n_warmup: int
    devices: tuple[DeviceGrowth, ...]
    objects: tuple[ObjectGrowth, ...]
    process_bytes: tuple[Reading, ...]
    collected_bytes: Reading
    error: str
    duration_s: float
    notes: tuple[str, ...] = ()
    graphs_per_run: float = 0.0

    @property
    def bytes_per_run(self) -> int:
        """Bytes that a repetition leaves behind, over all holders."""
        return sum(one.bytes_per_run for one in self.growths)

    @property
    def unexplained_bytes_per_run(self) -> Reading:
        """What the process itself grows by with every repetition and no growth explains.

        0 if it does not grow every time. Less than 3 repetitions cannot tell.
        """
        return unexplained(self.process_bytes, self.growths)

    def view(self) -> View:
        """Show what grows, who keeps it and how to mend it."""
        from nbinspect.leaks.growth_view import growth_view

        return growth_view(self)


def unexplained(process_bytes: tuple[Reading, ...], growths: Iterable[Growth]) -> Reading:
    """Say what a process grows by each time that is not in `growths`; see `LeakReport`."""
    sizes = [one for one in process_bytes if isinstance(one, int)]
    if len(sizes) < len(process_bytes):
        return Unavailable("the system does not say how large the process is")
    if len(sizes) <= LEAST_RISES:
        return Unavailable(f"it takes {LEAST_RISES} repetitions to tell")
    rises = [new - old for old, new in pairwise(sizes)]
    on_host = (one for one in growths if one.device == "cpu")
    rest = round(sum(rises) / len(rises)) - sum(one.bytes_per_run for one in on_host)
    return rest if min(rises) > LEAST_RISE_BYTES and rest > LEAST_REST_BYTES else 0
