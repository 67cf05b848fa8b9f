"""How memory records describe themselves: the answer first, then the picture, then the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

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
    Unavailable,
    View,
)
from nbinspect.equal_layers import any_layer, any_module, times
from nbinspect.memory.records import (
    Change,
    DeviceMemory,
    DevicePeak,
    LineMemory,
    MemoryDiff,
    MemoryReport,
    MemorySnapshot,
    ModuleMemory,
    Waste,
)
from nbinspect.records import Holding
from nbinspect.render.format import bytes_text
from nbinspect.render.palette import hue

Item = TypeVar("Item")
Columns = tuple[Column, ...]
Row = tuple[str | int, ...]
N_CHANGES = 20  # shown at most
N_ADVICE = 3  # more than that at once is not read
HOLDERS = (
    Column("kind", "kind"),
    Column("holder", "name"),
    Column("size", "bytes"),
    Column("tensors", "count"),
    Column("notes", "text"),
)


def snapshot_view(snapshot: MemorySnapshot) -> View:
    """Show what is in memory."""
    blocks: list[Block] = [_headline(snapshot)]
    for device in snapshot.devices:
        blocks += _device_bars(device)
    for device in snapshot.devices:
        if device.holdings:
            blocks.append(_holders(device, snapshot.n_top))
    blocks += _advice(snapshot.waste)
    blocks += [Text((note,), "note") for note in _notes(snapshot)]
    return tuple(blocks)


def _headline(snapshot: MemorySnapshot) -> Text:
    fullest = max(snapshot.devices, key=lambda one: one.tracked_bytes)
    if not fullest.holdings:
        return Text(("No live tensor holds any memory.",), "headline")
    first = _equal_as_one(fullest.holdings, snapshot.n_top)[0]
    kind, size = max(fullest.by_kind, key=lambda pair: pair[1])
    where = "" if len(snapshot.devices) == 1 else f" on {fullest.device}"
    spans: list[Span] = ["Tensors hold ", Size(fullest.tracked_bytes), where]
    if len(fullest.by_kind) > 1:
        spans += [", most of it ", hue(kind).words, " (", Size(size), ")"]
    spans += [". The largest holder is ", Code(first.owner), ", ", Size(first.size_bytes), "."]
    return Text(tuple(spans), "headline")


def _device_bars(device: DeviceMemory) -> Iterator[Block]:
    segments = [Segment(hue(kind).words, size, kind) for kind, size in device.by_kind]
    allocated = device.allocated_bytes
    if isinstance(allocated, int) and allocated > device.tracked_bytes:
        missing = allocated - device.tracked_bytes
        segments.append(Segment("not visible from Python", missing, "UNTRACKED"))
    if segments:
        yield Bar(device.device, tuple(segments), None, "tensors, by holder")
    yield _capacity(device)


def _capacity(device: DeviceMemory) -> Bar:
    label = f"{device.device} in all"
    if isinstance(device.total_bytes, Unavailable):
        return Bar(label, (), None, device.total_bytes.reason)
    parts: list[tuple[str, object, str]]
    if device.device == "cpu":
        parts = [
            ("this process", device.process_bytes, "PROCESS"),
            ("other processes", device.others_bytes, "OTHERS"),
        ]
    else:
        parts = [
            ("allocated", device.allocated_bytes, "ALLOCATED"),
            ("cached", _cached(device), "CACHED"),
            ("other processes", device.others_bytes, "OTHERS"),
        ]
    if not any(isinstance(size, int) for _, size, _ in parts):
        reason = next(size.reason for _, size, _ in parts if isinstance(size, Unavailable))
        total = f"{bytes_text(device.total_bytes)}, {device.total_note}"
        return Bar(label, (), None, f"{total}; what is used of it is not known: {reason}")
    segments = tuple(Segment(name, n, look) for name, n, look in parts if isinstance(n, int) and n)
    note = f"of {bytes_text(device.total_bytes)}, {device.total_note}"
    return Bar(label, segments, device.total_bytes, note)


def _cached(device: DeviceMemory) -> int | None:
    reserved, allocated = device.reserved_bytes, device.allocated_bytes
    if isinstance(reserved, Unavailable) or isinstance(allocated, Unavailable):
        return None
    return reserved - allocated


def _holders(device: DeviceMemory, n_top: int) -> Table:
    return _holder_table(device.holdings, n_top, f"Largest holders on {device.device}")


def _holder_table(holdings: Sequence[Holding], n_top: int, title: str) -> Table:
    rows = _equal_as_one(holdings, n_top)
    shown, rest = rows[:n_top], rows[n_top:]
    more = sum(one.size_bytes for one in rest) if rest else None
    return Table(HOLDERS, tuple(_holder_row(one) for one in shown), title, len(rest), more)


def _equal_as_one(holdings: Sequence[Holding], n_top: int) -> Sequence[Holding]:
    """Put the same tensor of equal layers into one row, where there are too many to show each."""

    def alike(one: Holding) -> Hashable:
        others = tuple(any_layer(other) for other in _news(one))
        return one.kind, any_layer(one.owner), one.size_bytes, one.note, others

    def merged(group: list[Holding]) -> Holding:
        first = group[0]
        return replace(
            first,
            owner=any_layer(first.owner),
            size_bytes=sum(one.size_bytes for one in group),
            n_tensors=sum(one.n_tensors for one in group),
        )

    rows = _merged(holdings, n_top, alike, merged)
    return sorted(rows, key=lambda one: -one.size_bytes)


def _merged(
    items: Sequence[Item],
    n_top: int,
    alike: Callable[[Item], Hashable],
    merged: Callable[[list[Item]], Item],
) -> Sequence[Item]:
    if len(items) <= n_top:
        return items
    groups: dict[Hashable, list[Item]] = {}
    for one in items:
        groups.setdefault(alike(one), []).append(one)
    return [merged(group) if len(group) > 1 else group[0] for group in groups.values()]


def _news(one: Holding) -> list[str]:
    return [other for other in one.also if not _is_expected(one.kind, other)]


def _holder_row(one: Holding) -> tuple[str | int, ...]:
    others = _news(one)
    more = others[0].partition(" ")[2] if others else ""
    if len(others) > 1:
        more += f" and {len(others) - 1} more"
    also = f"also held by {more}" if more else ""
    notes = "; ".join(part for part in (one.note, also) if part)
    return one.kind, one.owner, one.size_bytes, one.n_tensors, notes


def _is_expected(kind: str, other: str) -> bool:
    """Say whether it is no news that `other` holds this too: optimizers list parameters."""
    return kind == "PARAMETER" and other.startswith(("OPTIMIZER_STATE", "SAVED_FOR_BACKWARD"))


def _advice(waste: tuple[Waste, ...]) -> Iterator[Block]:
    found = [Advice(code_spans(one.what), one.mend, one.size_bytes) for one in waste]
    yield from found[:N_ADVICE]
    if rest := found[N_ADVICE:]:
        yield Fold(f"{len(rest)} more that could be freed", tuple(rest))


def code_spans(sentence: str) -> tuple[Span, ...]:
    """Turn backquotes in a sentence into code."""
    parts = re.split(r"`([^`]*)`", sentence)
    spans = (Code(part) if number % 2 else part for number, part in enumerate(parts))
    return tuple(span for span in spans if span not in {"", Code("")})


def _notes(snapshot: MemorySnapshot) -> Iterator[str]:
    yield from dict.fromkeys(note for device in snapshot.devices for note in device.notes)
    if not snapshot.complete:
        yield "This answer is not complete."


def diff_view(diff: MemoryDiff) -> View:
    """Show what changed between two snapshots."""
    if not diff.changes:
        return (Text(("Nothing changed.",), "headline"),)
    total = sum(one.after_bytes - one.before_bytes for one in diff.changes)
    grown = "grew" if total >= 0 else "shrank"
    shown, rest = _top(_equal_changes(diff.changes), N_CHANGES)
    cells = [
        (one.kind, one.owner, one.before_bytes, one.after_bytes, one.after_bytes - one.before_bytes)
        for one in shown
    ]
    columns: Columns = (
        Column("kind", "kind"),
        Column("holder", "name"),
        Column("before", "bytes"),
        Column("after", "bytes"),
        Column("change", "change"),
    )
    columns, rows = _by_device(columns, cells, shown)
    sentence = Text((f"Tensors {grown} by ", Size(abs(total)), "."), "headline")
    return sentence, Table(columns, rows, n_more=len(rest))


def _equal_changes(changes: Sequence[Change]) -> Sequence[Change]:
    def alike(one: Change) -> Hashable:
        return one.device, one.kind, any_layer(one.owner), one.before_bytes, one.after_bytes

    def merged(group: list[Change]) -> Change:
        return replace(
            group[0],
            owner=any_layer(group[0].owner),
            before_bytes=sum(one.before_bytes for one in group),
            after_bytes=sum(one.after_bytes for one in group),
        )

    rows = _merged(changes, N_CHANGES, alike, merged)
    return sorted(rows, key=lambda one: -abs(one.after_bytes - one.before_bytes))


def report_view(report: MemoryReport) -> View:
    """Show what a cell did to memory."""
    blocks: list[Block] = [_report_headline(report)]
    blocks += [_timeline(peak) for peak in report.peaks if not _is_flat(peak)]
    blocks += _lines(report)
    blocks += _modules(report)
    blocks += _kept(report)
    blocks += _advice(report.after.waste)
    blocks += [Text((note,), "note") for note in report.notes]
    return tuple(blocks)


def _report_headline(report: MemoryReport) -> Text:
    peak = next(one for one in report.peaks if one.device == report.device)
    if not peak.peak_bytes and not report.lines:
        return Text(("This cell allocated no tensor memory.",), "headline")
    spans: list[Span] = ["Peak ", Size(peak.peak_bytes), f" on {peak.device}"]
    if peak.peak_where is not None:
        spans += [" at ", Code(peak.peak_where.label)]
    spans += [": ", Size(report.added_peak_bytes), " more than the ", Size(peak.before_bytes)]
    spans += [" before the cell. "]
    left = peak.after_bytes - peak.before_bytes
    spans += ["It left ", Size(left), " behind."] if left > 0 else _nothing_left(left)
    if report.error:
        spans += [" The cell ended with ", Code(report.error), "."]
    return Text(tuple(spans), "headline")


def _nothing_left(left: int) -> list[Span]:
    return (
        ["At its end as much is held as before."] if left == 0 else ["It freed ", Size(-left), "."]
    )


def _is_flat(peak: DevicePeak) -> bool:
    """Say whether a cell left a device alone, so that its curve shows nothing."""
    return len(set(peak.sizes_bytes)) <= 1 and peak.peak_bytes == peak.before_bytes


def _timeline(peak: DevicePeak) -> Timeline:
    mark = Mark(peak.peak_time_s, peak.peak_bytes, "peak")
    title = f"{peak.device}: held by tensors while the cell ran"
    return Timeline(title, peak.times_s, peak.sizes_bytes, (mark,), peak.before_bytes)


def _lines(report: MemoryReport) -> Iterator[Block]:
    shown, rest = _top(report.lines, report.before.n_top)
    columns: Columns = (
        Column("line"),
        Column("source", "code"),
        Column("allocated", "bytes"),
        Column("at the peak", "bytes"),
        Column("kept", "bytes"),
    )
    if shown:
        columns, rows = _by_device(columns, [_line_row(one) for one in shown], shown)
        more = sum(one.allocated_bytes for one in rest) if rest else None
        yield Table(columns, rows, "Lines that allocated", len(rest), more)


def _by_device(
    columns: Columns, rows: Iterable[Row], ones: Sequence[LineMemory | ModuleMemory | Change]
) -> tuple[Columns, tuple[Row, ...]]:
    """Add a column with each row's device, where they are of several."""
    devices = [one.device for one in ones]
    if len(set(devices)) < 2:
        return columns, tuple(rows)
    wider = tuple((*row[:1], device, *row[1:]) for device, row in zip(devices, rows, strict=True))
    return (*columns[:1], Column("device"), *columns[1:]), wider


def _line_row(one: LineMemory) -> Row:
    label = one.where.label if one.where else "elsewhere"
    text = one.where.text if one.where else "no line of the user's own"
    return label, text, one.allocated_bytes, one.at_peak_bytes, one.kept_bytes


def _modules(report: MemoryReport) -> Iterator[Block]:
    shown, rest = _top(_equal_modules(report.modules, report.before.n_top), report.before.n_top)
    columns: Columns = (
        Column("module", "name"),
        Column("type", "text"),
        Column("allocated", "bytes"),
        Column("at the peak", "bytes"),
        Column("tensors", "count"),
    )
    if shown:
        cells = [
            (one.name, one.type_name, one.allocated_bytes, one.at_peak_bytes, one.n_allocations)
            for one in shown
        ]
        columns, rows = _by_device(columns, cells, shown)
        more = sum(one.allocated_bytes for one in rest) if rest else None
        title = "Modules whose forward allocated, without their children"
        yield Table(columns, rows, title, len(rest), more)


def _equal_modules(modules: Sequence[ModuleMemory], n_top: int) -> Sequence[ModuleMemory]:
    """Put equal layers into one row, where there are too many modules to show each."""
    types = {one.name: one.type_name for one in modules}
    names = {one.name: any_module(one.name, types) for one in modules}

    def alike(one: ModuleMemory) -> Hashable:
        return one.device, names[one.name], one.type_name

    def merged(group: list[ModuleMemory]) -> ModuleMemory:
        return replace(
            group[0],
            name=names[group[0].name],
            type_name=times(group[0].type_name, len(group)),
            allocated_bytes=sum(one.allocated_bytes for one in group),
            n_allocations=sum(one.n_allocations for one in group),
            at_peak_bytes=sum(one.at_peak_bytes for one in group),
        )

    rows = _merged(modules, n_top, alike, merged)
    return sorted(rows, key=lambda one: -one.allocated_bytes)


def _kept(report: MemoryReport) -> Iterator[Block]:
    if report.kept:
        yield _holder_table(report.kept, report.before.n_top, "What stayed behind")


def _top(items: Sequence[Item], n_top: int) -> tuple[Sequence[Item], Sequence[Item]]:
    return items[:n_top], items[n_top:]
