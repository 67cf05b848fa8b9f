"""What a watch says of a planted fault, held against what is to be said."""

from __future__ import annotations

from collections.abc import Iterator

from planted import Fault

from nbinspect import NanReport, nanwatch


def report_of(step, **options) -> NanReport:
    with nanwatch(stop=False, **options) as watch:
        step()
    return watch.report


def problems(fault: Fault, *, light: bool) -> Iterator[str]:
    """Say what is not as it should be."""
    report = report_of(fault.make(), light=light)
    if not fault.reaches:
        if report.findings:
            yield "is no finding"
        if not (light or set(fault.ops) & {one.op for one in report.absorbed}):
            yield "is not listed as absorbed"
        return
    if len(report.findings) != 1:
        yield f"{len(report.findings)} findings"
    for found in report.findings[:1]:
        if light and fault.light:
            ops, known = (fault.light,), False
        else:
            ops, known = fault.ops, found.op == fault.ops[0]
        if light and report.replayed != (not fault.light):
            yield f"replay: {report.replay}"
        if report.replayed and fault.phase != "optimizer" and "same loss" not in report.replay:
            yield report.replay
        for what, is_so in {
            f"op {found.op}": found.op in ops,
            f"reaches {found.reaches}": found.reaches == fault.reaches,
            f"why {found.why}": found.why and (fault.why in found.why or not known),
            "no mend": found.mend,
            f"phase {found.phase}": found.phase == fault.phase or not known,
            f"kind {found.kind}": found.kind == fault.kind or not known,
            f"node {found.node}": found.node == fault.node or not known or not fault.node,
            f"line {found.where}": not known or "# <- here" in found.where.text,
        }.items():
            if not is_so:
                yield what
