"""How an allocator snapshot describes itself: the peak, the curve, who was there, the map."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from nbinspect.blocks import (
    Advice,
    Bar,
    Block,
    Code,
    Column,
    Fold,
    Mark,
    Segment,
    Size,
    Span,
    Table,
    Text,
    Timeline,
    View,
)
from nbinspect.records import SourceLine
from nbinspect.render.format import bytes_text, count, percent, seconds
from nbinspect.snapshots.records import AllocatorSnapshot, LineBytes, SegmentMap

N_LINES = 10
N_SEGMENTS = 8
N_PARTS = 60  # of one segment's bar
N_SAMPLES = 20
WORTH = 0.2  # of what is reserved; less that is free is the allocator's normal working
LINES = (
    Column("allocated by", "name"),
    Column("in", "name"),
    Column("size", "bytes"),
    Column("allocations", "count"),
)


def snapshot_view(one: AllocatorSnapshot) -> View:
    """Show what filled a GPU."""
    blocks: list[Block] = [Text(headline(one), "headline")]
    if one.n_entries:
        blocks.append(_curve(one))
        lines = one.alive_at(one.peak_time_s)
        if lines:
            blocks.append(lines_table(lines, "Alive at the peak, by the line that allocated it"))
    blocks.append(_totals(one))
    blocks += _advice(one)
    blocks += _refused(one)
    blocks += _details(one)
    blocks += [Text((note,), "note") for note in one.notes]
    return tuple(blocks)


def headline(one: AllocatorSnapshot) -> tuple[Span, ...]:
    """Say in a sentence how full the GPU was."""
    end: tuple[Span, ...] = (
        Size(one.allocated_bytes),
        " allocated of ",
        Size(one.reserved_bytes),
        " reserved",
    )
    if not one.n_entries:
        return (*end, ", in ", Code(one.name), ".")
    after = f" {moment(one, one.peak_time_s)}, on GPU {one.device}. At the end, "
    return ("The peak was ", Size(one.peak_bytes), after, *end, ".")


def moment(one: AllocatorSnapshot, time_s: float) -> str:
    """Say when something was."""
    return f"at {seconds(time_s)}" if one.has_times else f"after {count(round(time_s))} entries"


def _curve(one: AllocatorSnapshot) -> Timeline:
    marks = [Mark(one.peak_time_s, one.peak_bytes, "peak")]
    for failed in one.oom[:5]:
        held = [m.allocated_bytes for m in one.timeline if m.time_s <= failed.time_s]
        marks.append(Mark(failed.time_s, held[-1] if held else 0, "out of memory"))
    times = tuple(m.time_s for m in one.timeline)
    sizes = tuple(m.allocated_bytes for m in one.timeline)
    unit = "" if one.has_times else ", over entries of the log"
    return Timeline(f"cuda:{one.device}: allocated{unit}", times, sizes, tuple(marks))


def lines_table(lines: tuple[LineBytes, ...], title: str) -> Table:
    """Tabulate lines by what they hold."""
    rest = lines[N_LINES:]
    rows = tuple(
        (_label(line), line.function, line.size_bytes, line.n_allocations)
        for line in lines[:N_LINES]
    )
    more = sum(line.size_bytes for line in rest) if rest else None
    return Table(LINES, rows, title, len(rest), more)


def where_label(where: SourceLine | None, function: str) -> str:
    """Name a line, or say why there is none."""
    if where is not None:
        return where.label
    return "no line of Python" if function else "before the log began"


def _label(line: LineBytes) -> str:
    return where_label(line.where, line.function)


def _totals(one: AllocatorSnapshot) -> Bar:
    waiting = one.active_bytes - one.allocated_bytes
    parts = [
        Segment("allocated", one.allocated_bytes, "ALLOCATED"),
        Segment("waiting for a stream", waiting, "OTHERS"),
        Segment("cached, free for reuse", one.reserved_bytes - one.active_bytes, "CACHED"),
    ]
    shown = tuple(part for part in parts if part.size_bytes > 0)
    note = f"of {bytes_text(one.reserved_bytes)} reserved, at the end"
    return Bar("all segments", shown, one.reserved_bytes, note)


def _advice(one: AllocatorSnapshot) -> Iterator[Block]:
    """Name fragmentation, where much is free but in small pieces."""
    free = one.free_blocks_bytes
    is_on = any(setting == "expandable_segments=True" for setting in one.settings)
    if not free or sum(free) < WORTH * one.reserved_bytes or free[0] > sum(free) / 4 or is_on:
        return
    spans = (
        Size(sum(free)),
        f" are free, but in {count(len(free))} pieces of which the largest has ",
        Size(free[0]),
        ". Before torch starts:",
    )
    code = 'import os; os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"'
    yield Advice(spans, code)


def _refused(one: AllocatorSnapshot) -> Iterator[Block]:
    if not one.oom:
        return
    rows = tuple(
        (
            moment(one, failed.time_s),
            failed.asked_bytes,
            failed.free_bytes,
            failed.where.label if failed.where else "",
        )
        for failed in one.oom
    )
    columns = (
        Column("out of memory"),
        Column("asked for", "bytes"),
        Column("the device had", "bytes"),
        Column("asked by", "name"),
    )
    yield Table(columns, rows)


def _details(one: AllocatorSnapshot) -> Iterator[Block]:
    if one.segments:
        yield Fold(f"Map of segments ({count(len(one.segments))})", tuple(_map(one)))
    if one.allocations:
        yield Fold("Largest allocations, and what was never freed", tuple(_allocations(one)))
    if one.n_entries:
        curves = (_active(one), _other_curve(one, "reserved"), _numbers(one))
        yield Fold("Active and reserved, and the curves in numbers", curves)
    if one.annotations:
        rows = tuple(
            (note.name, moment(one, note.start_s), _length(note.start_s, note.end_s))
            for note in one.annotations[:50]
        )
        columns = (Column("annotation", "name"), Column("begins"), Column("takes"))
        more = max(0, len(one.annotations) - 50)
        yield Fold(f"Annotations ({len(one.annotations)})", (Table(columns, rows, "", more),))
    if one.settings:
        yield Fold("The allocator's settings", (Text((", ".join(one.settings),)),))


def _length(start_s: float, end_s: float | None) -> str:
    return seconds(end_s - start_s) if end_s is not None else "has no end"


def _map(one: AllocatorSnapshot) -> Iterator[Block]:
    ranked = sorted(one.segments, key=lambda segment: -segment.total_bytes)
    for segment in ranked[:N_SEGMENTS]:
        yield _segment_bar(segment)
    rows = tuple(
        (
            f"{segment.address:#x}",
            segment.total_bytes,
            segment.allocated_bytes,
            max((size for size, state in segment.blocks if state == "inactive"), default=0),
            len(segment.blocks),
            segment.stream,
        )
        for segment in ranked[:50]
    )
    columns = (
        Column("segment", "name"),
        Column("size", "bytes"),
        Column("allocated", "bytes"),
        Column("largest free", "bytes"),
        Column("blocks", "count"),
        Column("stream", "count"),
    )
    rest = ranked[50:]
    more = sum(segment.total_bytes for segment in rest) if rest else None
    yield Table(columns, rows, "Segments, the largest first", len(rest), more)


def _segment_bar(segment: SegmentMap) -> Bar:
    """Draw a segment from its first address to its last: what is in use, and the gaps."""
    runs = [
        (state, sum(size for size, _ in run))
        for state, run in groupby(segment.blocks, key=lambda block: block[1])
    ]
    looks = {
        "active_allocated": ("allocated", "ALLOCATED"),
        "active_pending_free": ("waiting", "OTHERS"),
        "inactive": ("free", "CACHED"),
    }
    parts = [Segment(looks[state][0], size, looks[state][1]) for state, size in runs[:N_PARTS]]
    share = percent(segment.allocated_bytes / segment.total_bytes) if segment.total_bytes else "0 %"
    note = f"{bytes_text(segment.total_bytes)}, {share} in use"
    if len(runs) > N_PARTS:
        note += f", its first {N_PARTS} of {len(runs)} parts"
    label = f"{segment.kind or 'segment'} {segment.address:#x}"
    return Bar(label, tuple(parts), segment.total_bytes, note)


def _allocations(one: AllocatorSnapshot) -> Iterator[Block]:
    ranked = sorted(one.allocations, key=lambda each: -each.size_bytes)[:N_LINES]
    rows = tuple(
        (
            where_label(each.where, each.function),
            each.function,
            each.size_bytes,
            moment(one, each.start_s) if each.start_s is not None else "before the log",
            moment(one, each.end_s) if each.end_s is not None else "never",
        )
        for each in ranked
    )
    columns = (
        Column("allocated by", "name"),
        Column("in", "name"),
        Column("size", "bytes"),
        Column("allocated"),
        Column("freed"),
    )
    yield Table(columns, rows, "Largest allocations", max(0, len(one.allocations) - N_LINES))
    last = one.timeline[-1].time_s if one.timeline else 0.0
    left = one.alive_at(last)
    if left:
        yield lines_table(left, "Never freed, by the line that allocated it")


def _active(one: AllocatorSnapshot) -> Block:
    if all(each.active_bytes == each.allocated_bytes for each in one.timeline):
        said = "Active is the same as allocated at all times: no freed block waited for a stream."
        return Text((said,))
    return _other_curve(one, "active")


def _other_curve(one: AllocatorSnapshot, name: str) -> Timeline:
    times = tuple(each.time_s for each in one.timeline)
    sizes = tuple(getattr(each, f"{name}_bytes") for each in one.timeline)
    at = sizes.index(max(sizes))
    marks = (Mark(times[at], sizes[at], "peak"),)
    return Timeline(f"cuda:{one.device}: {name}", times, sizes, marks)


def _numbers(one: AllocatorSnapshot) -> Table:
    step = max(1, len(one.timeline) // N_SAMPLES)
    peak = max(range(len(one.timeline)), key=lambda at: one.timeline[at].allocated_bytes)
    at = sorted({*range(0, len(one.timeline), step), len(one.timeline) - 1, peak})
    shown = [one.timeline[index] for index in at]
    rows = tuple(
        (moment(one, m.time_s), m.allocated_bytes, m.active_bytes, m.reserved_bytes) for m in shown
    )
    columns = (
        Column("time"),
        Column("allocated", "bytes"),
        Column("active", "bytes"),
        Column("reserved", "bytes"),
    )
    return Table(columns, rows, "", len(one.timeline) - len(rows))
