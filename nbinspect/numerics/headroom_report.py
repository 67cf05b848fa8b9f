"""From what was collected to the record that `headroom` gives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nbinspect import _torch, notebook
from nbinspect.blocks import Unavailable
from nbinspect.numerics.exponents import LOWEST, Spread
from nbinspect.numerics.forecast import LIMIT
from nbinspect.numerics.headroom_records import (
    Exponents,
    FirstOverflow,
    Forecasted,
    HeadroomReport,
    LossScale,
    OpHeadroom,
)
from nbinspect.numerics.margins import Collector, Key, Run, Tally
from nbinspect.ops import Site
from nbinspect.records import SourceLine

# Exponents from which on values are subnormal, and from which on they round to 0.
FP16_SUBNORMAL, FP16_FLUSHED = -15, -26
BF16_SUBNORMAL, BF16_FLUSHED = -127, -135
MAY_FLUSH = 0.001  # of the gradients, for a scale to be good
PHASES = ("forward", "backward", "optimizer")


def made(collector: Collector, error: str, top: int) -> HeadroomReport:
    """Make the record."""
    order = _settings(collector)
    ops = [_op(key, tally, 1 << order[0]) for key, tally in collector.tallies.items()]
    return HeadroomReport(
        ops=tuple(sorted(ops, key=lambda one: -one.largest)),
        forecasts=tuple(_forecasted(collector, i) for i in order),
        scale=_scale(collector, order[0]),
        exponents=tuple(_exponents(collector)),
        n_ops=collector.n_ops,
        skipped=tuple(sorted(collector.skipped.items())),
        dtypes=tuple(collector.dtypes.most_common()),
        error=error,
        notes=tuple(_notes(collector, order[0])),
        n_top=top,
    )


def _settings(collector: Collector) -> list[int]:
    """Order the settings: autocast where most of the step ran comes first."""
    settings = collector.forecast.settings
    here = collector.devices.most_common(1)[0][0] if collector.devices else "cpu"
    return sorted(range(len(settings)), key=lambda i: settings[i].device != here)


def _op(key: Key, tally: Tally, bit: int) -> OpHeadroom:
    values = tally.values
    return OpHeadroom(
        op=key.op.replace("::", "."),
        module=key.place.module,
        phase=key.place.phase,
        where=_line(key.place.site),
        n_calls=tally.n_calls,
        n_values=tally.n_values,
        n_zero=values.n_zero,
        n_nonfinite=values.n_nonfinite,
        n_meant=tally.n_meant,
        largest=values.largest,
        fp16_subnormal=_share(values, FP16_FLUSHED + 1, FP16_SUBNORMAL),
        fp16_flushed=_share(values, LOWEST, FP16_FLUSHED),
        bf16_subnormal=_share(values, BF16_FLUSHED + 1, BF16_SUBNORMAL),
        bf16_flushed=_share(values, LOWEST, BF16_FLUSHED),
        runs_in="float16" if tally.half & bit else tally.dtype,
    )


def _share(values: Spread, first: int, last: int) -> float:
    n_all = values.n_nonzero
    return values.n_between(first, last) / n_all if n_all else 0.0


def _line(site: Site) -> SourceLine | None:
    return notebook.source_line(*site) if site is not None else None


def _forecasted(collector: Collector, i: int) -> Forecasted:
    found = collector.forecast.overflows[i]
    first = None
    if found:
        run: Run = collector.runs[found[0].at]
        place = run.key.place
        first = FirstOverflow(
            run.key.op,
            place.module,
            place.phase,
            _line(place.site),
            found[0].at,
            found[0].largest,
            found[0].of,
            _close(found[0].largest) or run.caution,
        )
    label = collector.forecast.settings[i].label
    return Forecasted(label, first, len(found), collector.n_half[i])


def _close(largest: float) -> str:
    near = LIMIT <= largest < 1.05 * LIMIT
    return "it is so near to the limit that rounding decides" if near else ""


def _scale(collector: Collector, i: int) -> LossScale | Unavailable:
    """Work out between which powers of two the loss may be scaled."""
    sure, all_ = collector.gradients[i]
    gradients = sure if sure.n_nonzero else all_  # begun by backward(gradient), say
    ran_at = collector.scale
    if not gradients.n_nonzero:
        return Unavailable(
            "every gradient is 0 already"
            if gradients.n_zero
            else "no backward operation would run in float16"
        )
    if gradients.n_nonfinite:
        return Unavailable("some gradients are NaN or infinite already")
    shift = round(math.log2(ran_at)) if ran_at > 0 else 0
    # The 1 that a gradient begins with is scaled too, and a loss in float16 takes it in float16.
    first = 1.0 if collector.forecast.half_losses >> i & 1 else 0.0
    scaled = max(gradients.largest, collector.forecast.cast_gradients[i])
    largest = max(scaled / ran_at, first)
    highest = math.ceil(math.log2(LIMIT / largest)) - 1

    def flushed(power: int) -> float:
        return _share(gradients, LOWEST, FP16_FLUSHED + shift - power)

    lowest = next((k for k in range(160) if flushed(k) <= MAY_FLUSH), 160)
    return LossScale(
        largest, gradients.n_nonzero, flushed(0), lowest, highest, flushed(highest), ran_at
    )


def _exponents(collector: Collector) -> list[Exponents]:
    found = []
    for phase in PHASES:
        values = Spread()
        for key, tally in collector.tallies.items():
            if key.place.phase == phase:
                values.add(tally.values)
        used = np.flatnonzero(values.counts)
        if len(used):
            counts = tuple(int(n) for n in values.counts[used[0] : used[-1] + 1])
            found.append(Exponents(phase, int(used[0]) + LOWEST, counts, values.n_zero))
    return found


def _notes(collector: Collector, i: int) -> Sequence[str]:
    notes = []
    if i in collector.refused:
        key = collector.refused[i]
        line = _line(key.place.site)
        at = f" in {line.label}" if line is not None else ""
        notes.append(
            f"{key.op}{at} puts a number beyond 65504 into what would be float16; torch refuses "
            "that with an error. torch.finfo(x.dtype).min suits every dtype."
        )
    n_meant = sum(tally.n_meant for tally in collector.tallies.values())
    n_bad = sum(tally.values.n_nonfinite for tally in collector.tallies.values())
    if n_meant:
        notes.append(
            f"{n_meant} values that a number in the code put there, as for a mask, are left out."
        )
    if n_bad:
        notes.append(f"{n_bad} values are NaN or infinite already; they are counted apart.")
    if _torch.has_compiled():
        notes.append(
            "Compiled functions ran as compiled: what their kernels work out inside is not in here."
            if _torch.compiles_under_modes()
            else "This torch runs compiled functions eagerly while operations are watched."
        )
    if collector.n_recomputed:
        notes.append(
            f"{collector.n_recomputed} operations that a checkpoint ran again are counted once."
        )
    return notes
