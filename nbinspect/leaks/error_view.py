"""How the memory that an error keeps describes itself."""

from __future__ import annotations

from collections.abc import Iterator

from nbinspect.blocks import (
    Advice,
    Block,
    Code,
    Column,
    Fold,
    Size,
    Span,
    Table,
    Text,
    Unavailable,
    View,
)
from nbinspect.leaks.records import SHARED_MEMORY, OutOfMemory, PinnedFrame, TracebackMemory
from nbinspect.memory.view import code_spans
from nbinspect.render.format import cut_end, many

N_FRAMES = 12
DROP = "%traceback_memory --drop"
DEBUG = Code("%debug")
LONGEST_ERROR = 60  # in a sentence; the whole message stands above it in the notebook
FRAMES = (
    Column("call", "name"),
    Column("left at", "name"),
    Column("variables", "name"),
    Column("only here", "bytes"),
    Column("in all", "bytes"),
)
HOLDERS = (Column("kind", "kind"), Column("holder", "name"), Column("size", "bytes"))


def error_view(found: TracebackMemory) -> View:
    """Show what the last error keeps."""
    blocks: list[Block] = [Text(_headline(found), "headline")]
    if found.dropped or found.dropped_bytes:
        spans: tuple[Span, ...] = (
            DEBUG,
            " and ",
            Code("%tb"),
            " have nothing to look at any more.",
        )
        blocks.append(Text(spans))
        if found.frames:
            title = f"{many(len(found.frames), 'call')} that it left"
            blocks.append(Fold(title, (_frames(found),)))
    else:
        blocks += _kept(found)
    blocks += [Text((note,), "note") for note in found.notes]
    return tuple(blocks)


def _kept(found: TracebackMemory) -> Iterator[Block]:
    if found.oom is not None:
        yield from _out_of_memory(found.oom)
    if found.total_bytes:
        yield Text(_where(found))
    if found.frames:
        yield _frames(found)
    if found.only_here_bytes:
        spans = (
            "Let go of the error. What was printed stays, but ",
            DEBUG,
            " has nothing to look at afterwards: run it first if you need it.",
        )
        yield Advice(spans, DROP, found.only_here_bytes)


def hint_view(found: TracebackMemory) -> View:
    """Say in one line that the error keeps much, or what was asked for in vain."""
    if found.oom is not None:
        end = (": ", Code("%traceback_memory"), " shows who has it and what to let go of first.")
        return (Text((*_refused(found.oom), *end), "note"),)
    spans: list[Span] = ["This error keeps ", Size(found.only_here_bytes), " alive"]
    most = max(found.frames, key=_told_first, default=None)
    if most is not None and most.names:
        names = ", ".join(most.names[:3])
        spans += [" (", Code(names), f" in {_call(most)}, {most.where.label})"]
    return (
        Text(
            (*spans, ": ", Code("%traceback_memory"), " shows it, ", Code("--drop"), " frees it."),
            "note",
        ),
    )


def _told_first(one: PinnedFrame) -> tuple[bool, int]:
    """Prefer the user's own calls to those of a library."""
    return one.where.cell is not None and one.only_here_bytes > 0, one.only_here_bytes


def _headline(found: TracebackMemory) -> tuple[Span, ...]:
    error = Code(cut_end(found.error, LONGEST_ERROR))
    if found.oom is not None and not found.dropped_bytes:
        return (*_refused(found.oom), ".")
    if not found.error:
        return ("No error is kept, so none keeps memory.",)
    kind = Code(found.error.partition(":")[0])
    if found.dropped and found.dropped_bytes:
        return (
            "Let go: ",
            Size(found.dropped_bytes),
            " that ",
            kind,
            " kept are free again.",
        )
    if found.dropped:
        return ("Let go. ", kind, " kept nothing that is not in use elsewhere.")
    if found.dropped_bytes:
        left = found.only_here_bytes - found.dropped_bytes
        return (
            "Let go: ",
            Size(found.dropped_bytes),
            " are free again, ",
            Size(left),
            " are not yet.",
        )
    if not found.total_bytes:
        return (error, " keeps no tensor alive.")
    if not found.only_here_bytes:
        spans = (
            " leads to ",
            Size(found.total_bytes),
            " of tensors, all of which something else holds too.",
        )
        return (error, *spans)
    return (
        error,
        " keeps ",
        Size(found.only_here_bytes),
        " alive that nothing else holds.",
    )


def _refused(oom: OutOfMemory) -> tuple[Span, ...]:
    place = f"memory on {oom.device}" if oom.device != SHARED_MEMORY else SHARED_MEMORY
    spans: list[Span] = [f"Out of {place}"]
    if isinstance(oom.asked_bytes, int):
        spans += [": ", Size(oom.asked_bytes), " were asked for"]
    if isinstance(oom.free_bytes, int):
        spans += [", ", Size(oom.free_bytes), " were free"]
    return tuple(spans)


def _where(found: TracebackMemory) -> tuple[Span, ...]:
    spans: list[Span] = ["It is kept as "]
    for number, label in enumerate(found.held_by):
        spans += [", " if number else "", Code(label) if label.startswith("sys.") else label]
    spans += [", and leads to ", Size(found.total_bytes), " in all."]
    return tuple(spans)


def _frames(found: TracebackMemory) -> Table:
    numbered = enumerate(found.frames)
    ranked = sorted(numbered, key=lambda one: (-one[1].only_here_bytes, -one[1].size_bytes))
    shown = [one for _, one in sorted(ranked[:N_FRAMES], key=lambda one: one[0])]
    n_more = len(found.frames) - len(shown) + found.n_more_frames
    return Table(FRAMES, tuple(map(_row, shown)), "Calls, the outermost first", n_more)


def _row(one: PinnedFrame) -> tuple[str | int, ...]:
    names = ", ".join(one.names)
    return _call(one), one.where.label, names, one.only_here_bytes, one.size_bytes


def _call(one: PinnedFrame) -> str:
    return f"{one.function}()" if one.function else f"the {one.error} itself"


def _out_of_memory(oom: OutOfMemory) -> Iterator[Block]:
    rows = (
        ("asked for", oom.asked_bytes),
        ("free then", oom.free_bytes),
        ("in use" if oom.device == SHARED_MEMORY else "allocated by tensors", oom.allocated_bytes),
        ("reserved but unallocated", oom.unallocated_bytes),
        ("there is in all", oom.total_bytes),
    )
    # torch's CPU allocator reserves nothing; elsewhere what is not known is said.
    is_host = oom.device in {"cpu", SHARED_MEMORY}
    shown = tuple(row for row in rows if not (is_host and isinstance(row[1], Unavailable)))
    place = SHARED_MEMORY if oom.device == SHARED_MEMORY else f"on {oom.device}"
    yield Table((Column(place), Column("size", "bytes")), shown)
    if oom.device == SHARED_MEMORY:
        said = (
            "A loader's workers hand batches over in it: fewer workers or smaller batches need less, "
            "and a container may be given more (docker run --shm-size)."
        )
        yield Text((said,))
    if oom.setting:
        spans: tuple[Span, ...] = (
            "There was enough, but in pieces. Restart the kernel and run this before torch is imported:",
        )
        yield Advice(spans, oom.setting)
    for one in oom.let_go:
        if one.code == DROP:  # said below, with what it means for %debug
            continue
        yield Advice(code_spans(one.what), one.code, one.size_bytes)
    if oom.holdings:
        holders = tuple((one.kind, one.owner, one.size_bytes) for one in oom.holdings)
        title = f"{len(holders)} largest holders on {oom.device} now"
        yield Fold(title, (Table(HOLDERS, holders),))
