"""How growth describes itself: what grows, who keeps it, how to mend it."""

from __future__ import annotations

from collections.abc import Iterator

from nbinspect.blocks import (
    Advice,
    Block,
    Code,
    Column,
    Fold,
    Span,
    Table,
    Text,
    Unavailable,
    View,
)
from nbinspect.leaks.records import LETS_GO, DeviceGrowth, Growth, LeakReport
from nbinspect.memory.view import code_spans
from nbinspect.render.format import bytes_text, many, plain_number

N_ADVICE = 3
LONGER = "tensor that gets longer"
GROWTHS = (
    Column("kept by", "name"),
    Column("as", "kind"),
    Column("each run", "change"),
    Column("tensors", "count"),
    Column("allocated at", "name"),
)
PARTS = (
    Column("part, repeated alone"),
    Column("each run", "change"),
    Column("kept by", "name"),
    Column("suspect"),
)
STATES = {"garbage": "waits for gc", "uncollectable": "nothing frees it", "live": ""}


def growth_view(report: LeakReport) -> View:
    """Show what grows with each repetition."""
    blocks: list[Block] = [Text(_headline(report), "headline")]
    if report.growths:
        blocks.append(Table(GROWTHS, tuple(map(_row, report.growths))))
        blocks += _advice(report.growths)
    if report.by_part:
        blocks.append(_parts(report))
    blocks += _details(report)
    blocks += [Text((note,), "note") for note in _notes(report)]
    return tuple(blocks)


def _headline(report: LeakReport) -> tuple[Span, ...]:
    over = f"over {many(report.n, 'repetition')}"
    if not report.growths:
        if report.error and report.n < 2:
            return (Code(report.error), " ended it before anything could be compared.")
        if report.graphs_per_run:
            return (
                f"No tensor grows {over}, but ",
                Code("torch.compile"),
                " compiles again in each of them.",
            )
        rest = report.unexplained_bytes_per_run
        if isinstance(rest, int) and rest:
            each = f"{bytes_text(rest, signed=True)} each run"
            return (f"No tensor and no list grows {over}, but the process does: {each}.",)
        return (f"Nothing grows {over}.",)
    first = report.growths[0]
    spans: list[Span] = [
        f"+{bytes_text(first.bytes_per_run)} each run: ",
        Code(first.holder),
        _what(first),
    ]
    if first.where is not None:
        made = " at " if first.pattern == LONGER else " what is made at "
        spans += [made, Code(first.where.label)]
    spans.append(".")
    if len(report.growths) > 1:
        more = len(report.growths) - 1
        spans.append(f" {more} more {'grow' if more > 1 else 'grows'}.")
    return tuple(spans)


def _what(one: Growth) -> str:
    n = round(one.items_per_run, 1)
    items = f", +{plain_number(n)} {one.item or 'item'}{'s' * (n != 1)}" if n else ""
    about = f" ({one.container}{items})" if one.container else ""
    if one.state == "garbage":
        about += ", in a cycle,"
    elif one.state == "uncollectable":
        about += ", in a cycle through C++,"
    if one.pattern == LONGER:
        return " gets longer"
    if one.where is None:
        return f"{about} {'keeps more each time' if one.tensors_per_run else 'gets longer'}"
    return f"{about} keeps" + (" the graph of" if one.kind == "SAVED_FOR_BACKWARD" else "")


def _row(one: Growth) -> tuple[str | int | float | None, ...]:
    where = one.where.label if one.where else ""
    return one.holder, one.kind, one.bytes_per_run, round(one.tensors_per_run), where


def _advice(found: tuple[Growth, ...]) -> Iterator[Block]:
    said = list[Block]()
    for one in found:
        text = one.mend.removesuffix(LETS_GO.format(one.code)) if one.code else one.mend
        said.append(Advice(code_spans(text), one.code))
    yield from said[:N_ADVICE]
    if said[N_ADVICE:]:
        yield Fold(f"{len(said) - N_ADVICE} more to mend", tuple(said[N_ADVICE:]))
    chains = tuple((one.holder, one.chain) for one in found if one.chain)
    if chains:
        columns = (Column("kept by", "name"), Column("one chain of references", "code"))
        yield Fold("How each is held", (Table(columns, chains),))


def _parts(report: LeakReport) -> Table:
    rows: list[tuple[str, int | None, str, str]] = []
    for one in report.by_part:
        suspect = one.suspect
        workers = one.workers_bytes_per_run
        if isinstance(workers, int):
            note = f"workers {bytes_text(workers, signed=True)} in one pass"
            suspect = "; ".join(part for part in (suspect, note) if part)
        elif isinstance(workers, Unavailable):
            suspect = "; ".join(part for part in (suspect, f"workers: {workers.reason}") if part)
        size = one.bytes_per_run
        if isinstance(size, Unavailable):
            rows.append((one.part, None, "", size.reason))
        else:
            rows.append((one.part, size, one.holder, suspect))
    return Table(PARTS, tuple(rows), "Which part grows")


def _details(report: LeakReport) -> Iterator[Block]:
    if report.n < 2:
        return
    rows: list[tuple[str, int | Unavailable, str]] = [
        (one.name, one.bytes_per_run, _series(one)) for one in report.devices
    ]
    rows.append(_process_row(report))
    columns = (Column("memory"), Column("each run", "change"), Column("held after each run"))
    tables: list[Block] = [Table(columns, tuple(rows))]
    if report.objects:
        objects = tuple(
            (one.type_name, f"+{plain_number(round(one.per_run, 1))}", one.n_objects, one.holder)
            for one in report.objects
        )
        heads = (
            Column("Python objects", "name"),
            Column("each run"),
            Column("now", "count"),
            Column("the newest is kept by", "code"),
        )
        tables.append(Table(heads, objects))
    yield Fold(f"Memory over {many(report.n, 'repetition')}", tuple(tables))


def _series(one: DeviceGrowth) -> str:
    sizes = one.sizes_bytes
    shown = sizes if len(sizes) <= 6 else (*sizes[:3], *sizes[-2:])
    texts = [bytes_text(size) for size in shown]
    if len(sizes) > 6:
        texts.insert(3, "…")
    return ", ".join(texts)


def _process_row(report: LeakReport) -> tuple[str, int | Unavailable, str]:
    """Show the process's size beside what is explained of it."""
    sizes = [one for one in report.process_bytes if isinstance(one, int)]
    if len(sizes) < 2:
        return "the process", Unavailable("the system does not say"), ""
    each = round((sizes[-1] - sizes[0]) / (len(sizes) - 1))
    explained = sum(one.bytes_per_run for one in report.growths if one.device == "cpu")
    return "the process", each, f"{bytes_text(explained, signed=True)} of it explained above"


def _notes(report: LeakReport) -> Iterator[str]:
    if isinstance(report.collected_bytes, int):
        yield f"gc.collect() at the end freed {bytes_text(report.collected_bytes)}."
    elif any(one.state == "garbage" for one in report.growths):
        yield "Nothing was collected; with --collect the end says what gc.collect() frees."
    rest = report.unexplained_bytes_per_run
    if isinstance(rest, int) and rest:
        yield (
            f"The process gets {bytes_text(rest)} larger in each repetition that nothing above "
            "explains: memory of a library's own, or of values that no name of yours leads to."
        )
    if n := report.graphs_per_run:
        yield (
            f"torch.compile compiled {plain_number(n)} more graph{'s' * (n != 1)} in each "
            "repetition, and keeps them all. TORCH_LOGS=recompiles says why; dynamic=True helps "
            "where a size or number changes."
        )
    if any(one.kind == "SAVED_FOR_BACKWARD" and not one.tensors_per_run for one in report.growths):
        yield (
            "A graph whose backward has run keeps no tensor but its nodes: these are counted, and "
            "their bytes estimated."
        )
    if report.error:
        yield f"{report.error} ended it after {many(report.n + report.n_warmup, 'whole repetition')}."
    yield from report.notes
