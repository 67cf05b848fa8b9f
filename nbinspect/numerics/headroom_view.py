"""How `headroom`'s record describes itself: what overflows first, the spread, the least room."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nbinspect.blocks import (
    Advice,
    Band,
    Block,
    Code,
    Column,
    Fold,
    Histogram,
    Span,
    Table,
    Text,
    View,
)
from nbinspect.numerics.headroom_records import (
    FP16_MAX,
    Exponents,
    FirstOverflow,
    Forecasted,
    HeadroomReport,
    LossScale,
    OpHeadroom,
    Where,
)
from nbinspect.render.format import count, many, percent, plain_number

DEFAULT_SCALE_LOG2 = 16  # where torch's GradScaler begins
AXIS = (-50, 40)  # what lies outside is added to the ends
BANDS = (
    Band("float16", -24, -14, faint=True),
    Band("float16", -14, 16),
    Band("bfloat16", -133, -126, faint=True),
    Band("bfloat16", -126, 128),
)
ROOM = (
    Column("operation", "name"),
    Column("module", "name"),
    Column("phase"),
    Column("line"),
    Column("largest", "count"),
    Column("of 65504", "percent"),
    Column("2ⁿ left", "count"),
    Column("to 0", "percent"),
    Column("subnormal", "percent"),
)


def headroom_view(report: HeadroomReport) -> View:
    """Show the answer, what to do, the spread, and the operations."""
    blocks: list[Block] = [_headline(report), *_actions(report)]
    blocks += [_histogram(one) for one in report.exponents]
    if len(report.exponents):
        blocks.append(Text((RANGES,), "note"))
    blocks += [*_forecasts(report), *_tables(report)]
    blocks += [Text((note,), "note") for note in _notes(report)]
    return tuple(blocks)


def _headline(report: HeadroomReport) -> Text:
    if not report.ops:
        return Text(("No operation gave floating-point values.",), "headline")
    setting = report.forecasts[0]
    first = setting.first
    if first is None:
        return _room(report, setting)
    spans: list[Span] = [f"Under {_under(setting)} ", *_what(first), " would overflow first: "]
    if math.isinf(first.largest):
        spans.append("it overflows float32 as well.")
    else:
        spans.append(
            f"{plain_number(first.largest)} is {_times(first.largest / FP16_MAX)} the largest float16 "
            f"({FP16_MAX:.0f})."
        )
    return Text(tuple(spans), "headline")


def _room(report: HeadroomReport, setting: Forecasted) -> Text:
    narrow = [one for one in report.ops if one.runs_in == "float16" and one.largest]
    said: list[Span] = [f"Nothing would overflow under {_under(setting)}"]
    if narrow:
        least = narrow[0]
        room = f"{plain_number(least.largest)}, leaves room for {_times(least.fp16_factor)} as much"
        said += [": the largest value there, of ", Code(least.op), *_of(least.module)]
        said += [f", {room} ({least.fp16_powers:.1f} powers of 2)"]
    return Text((*said, "."), "headline")


def _under(setting: Forecasted) -> str:
    return setting.setting.replace("autocast on", "autocast to float16 on")


def _what(first: FirstOverflow) -> tuple[Span, ...]:
    an = ("an input of ",) if first.of == "input" else ()
    at = (f" ({first.where.label}, {first.phase})",) if first.where else (f" ({first.phase})",)
    return (*an, Code(first.op), *_of(first.module), *at)


def _of(module: str) -> tuple[Span, ...]:
    return (" in ", Code(module)) if module else ()


def _times(factor: float) -> str:
    return f"{factor:.3g} times" if factor < 1e4 else f"{factor:.0e} times".replace("e+0", "e")


def _actions(report: HeadroomReport) -> Iterator[Block]:
    setting = report.forecasts[0] if report.forecasts else None
    device = _device(setting)
    if setting is not None and (first := setting.first) is not None:
        if first.where is not None and first.where.text:
            yield Text((Code(first.where.text),))
        if first.caution:
            yield Text((f"It may go otherwise: {first.caution}.",))
        if first.phase == "forward":
            yield _widen(first, device)
    if isinstance(report.scale, LossScale):
        yield _scale(report.scale, device)
    else:
        yield Text((f"Loss scale: not known, {report.scale.reason}.",), "note")


def _device(setting: Forecasted | None) -> str:
    label = setting.setting if setting is not None else ""
    return label.rpartition(" ")[2] if label.startswith("autocast on ") else "cuda"


def _widen(first: FirstOverflow, device: str) -> Advice:
    if math.isinf(first.largest):
        return Advice(
            (
                "float32 cannot hold it either; ",
                Code("%%nanwatch"),
                " tells where it begins.",
            )
        )
    spans = ("bfloat16 holds it, with fewer digits; or keep that operation in float32.",)
    return Advice(spans, f'with torch.autocast("{device}", torch.bfloat16): ...')


def _scale(scale: LossScale, device: str) -> Advice:
    lowest, highest = scale.lowest_log2, scale.highest_log2
    lost = percent(scale.flushed_unscaled)
    become = f"{lost} of them become" if scale.flushed_unscaled else "none of them becomes"
    start: list[Span] = [f"Gradients: without a loss scale {become} 0 in float16. "]
    if highest < 0:
        start += [f"They overflow even so: the largest is {plain_number(scale.largest)}."]
        return Advice(tuple(start), f"loss = loss / 2**{-highest}")
    if lowest > highest:
        rest = percent(scale.flushed_highest)
        start += [
            f"No single scale holds all: at the largest, 2^{highest}, {rest} are still lost. "
        ]
    elif lowest == 0:
        start += [f"So none is needed; up to 2^{highest} fits. "]
    else:
        start += [f"A scale from 2^{lowest} to 2^{highest} holds them. "]
    if lowest <= DEFAULT_SCALE_LOG2 <= highest:
        return Advice((*start, "GradScaler's first, 2^16, does."))
    if highest < DEFAULT_SCALE_LOG2:
        n_skipped = DEFAULT_SCALE_LOG2 - highest
        start += [f"GradScaler begins at 2^16 and would skip the first {n_skipped} steps."]
    good = highest if lowest > highest else max(lowest, highest - 1)
    return Advice(
        tuple(start), f'scaler = torch.amp.GradScaler("{device}", init_scale=2.0**{good})'
    )


def _histogram(one: Exponents) -> Histogram:
    first, counts = _cut(one)
    n_all = sum(one.counts) + one.n_zero
    zero = f", {percent(one.n_zero / n_all)} of them 0" if one.n_zero else ""
    last = first + len(counts)
    step = next(step for step in (8, 16, 32) if (last - first) / step < 12)
    places = [place for place in range(-160, 160, step) if first <= place <= last]
    return Histogram(
        f"{one.what}: {count(n_all)} values by magnitude{zero}",
        first,
        counts,
        tuple((float(place), power(place)) for place in places),
        BANDS,
        faint_below=-14,
        alert_from=16,
    )


def _cut(one: Exponents) -> tuple[int, tuple[int, ...]]:
    """Give the counts between the ends of the axis, and at least from -28 to 18."""
    low = max(min(one.first, -28), AXIS[0])
    high = min(max(one.first + len(one.counts), 19), AXIS[1])
    counts = [0] * (high - low)
    for at, n in enumerate(one.counts, start=one.first):
        counts[min(max(at, low), high - 1) - low] += n
    return low, tuple(counts)


def power(exponent: int) -> str:
    """Write a power of two as people do: ``2⁻¹⁴``, and 1 for the 0th."""
    if exponent == 0:
        return "1"
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


RANGES = (
    "Under the axis: what each format holds in full (strong) and, as subnormal numbers, with fewer "
    "digits (pale). Red columns would overflow float16; pale ones lose digits or become 0."
)


def _forecasts(report: HeadroomReport) -> Iterator[Block]:
    if not any(one.first for one in report.forecasts):
        return
    rows = tuple(_forecast(one) for one in report.forecasts)
    columns = (
        Column("if it ran as"),
        Column("overflows first", "name"),
        Column("module", "name"),
        Column("line"),
        Column("value", "count"),
        Column("over in all", "count"),
    )
    yield Table(columns, rows, "What would overflow in float16")


def _forecast(one: Forecasted) -> tuple[str | int | float | None, ...]:
    first = one.first
    if first is None:
        return (one.setting, None, None, None, None, 0)
    value = first.largest if math.isfinite(first.largest) else None
    op = f"{first.op} (input)" if first.of == "input" else first.op
    module = first.module or None
    return (one.setting, op, module, _label(first.where), value, one.n_overflows)


def _label(where: Where) -> str | None:
    return where.label if where is not None else None


def _tables(report: HeadroomReport) -> Iterator[Block]:
    narrow = [one for one in report.ops if one.runs_in == "float16"]
    others = [one for one in report.ops if one.runs_in != "float16"]
    top = report.n_top
    if narrow:
        yield _table(narrow, top, "Least room, of what autocast runs in float16")
    if others:
        inside = _table(others, top, "")
        yield Fold(f"Not in float16 under autocast: {many(len(others), 'operation')}", (inside,))
    if report.ops:
        yield _bf16(report)
    if report.skipped or report.dtypes:
        yield _looked_at(report)


def _table(ops: Sequence[OpHeadroom], top: int, title: str) -> Table:
    rows = tuple(
        (
            one.op.removeprefix("aten."),
            one.module or None,
            one.phase,
            _label(one.where),
            one.largest,
            one.largest / FP16_MAX,
            _rounded(one.fp16_powers),
            one.fp16_flushed,
            one.fp16_subnormal,
        )
        for one in ops[:top]
    )
    return Table(ROOM, rows, title, max(len(ops) - top, 0))


def _rounded(number: float) -> float | None:
    if not math.isfinite(number):
        return None
    return float(f"{number:.2g}") if abs(number) < 10 else round(number, 1)


def _bf16(report: HeadroomReport) -> Fold:
    """bfloat16 has float32's range: what matters there is only the smallest values."""
    lossy = sorted(report.ops, key=lambda one: -(one.bf16_flushed + one.bf16_subnormal))
    least = min((one.bf16_powers for one in report.ops), default=math.inf)
    room = "all is 0" if math.isinf(least) else f"{least:.0f} powers of 2 left"
    n_lossy = sum(1 for one in report.ops if one.bf16_flushed + one.bf16_subnormal)
    columns = (
        Column("operation", "name"),
        Column("module", "name"),
        Column("phase"),
        Column("largest", "count"),
        Column("2ⁿ left", "count"),
        Column("to 0", "percent"),
        Column("subnormal", "percent"),
    )
    rows = tuple(
        (
            one.op.removeprefix("aten."),
            one.module or None,
            one.phase,
            one.largest,
            _rounded(one.bf16_powers),
            one.bf16_flushed,
            one.bf16_subnormal,
        )
        for one in lossy[: report.n_top]
    )
    some = f"{count(n_lossy)} operations have values below it" if n_lossy else "none too small"
    table = Table(columns, rows, "", max(len(report.ops) - report.n_top, 0))
    return Fold(f"bfloat16: {room}, {some}", (table,))


def _looked_at(report: HeadroomReport) -> Fold:
    rows = tuple((name, number) for name, number in (*report.dtypes, *report.skipped))
    table = Table((Column("results"), Column("how many", "count")), rows)
    return Fold(f"{many(report.n_ops, 'operation')} looked at, by what they gave", (table,))


def _notes(report: HeadroomReport) -> Iterator[str]:
    if report.error:
        yield f"The step ended early, by {report.error}."
    if isinstance(report.scale, LossScale) and report.scale.ran_at != 1:
        yield f"The step scaled its loss by {plain_number(report.scale.ran_at)}; the advice counts from 1."
    n_half = dict(report.dtypes).get("float16", 0)
    if n_half:
        yield f"{count(n_half)} results were float16 already: what they lost is gone from here."
    yield from report.notes
    if report.ops:
        yield (
            "Not seen: x.float() of what is float32 already and autocast(enabled=False), which keep "
            "the rest in float32; the inside of fused kernels; rounding errors that float16 would add."
        )
