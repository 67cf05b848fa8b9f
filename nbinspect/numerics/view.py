"""How a report of `nanwatch` reads: the sentence, the mend, the way it went, the values."""

from __future__ import annotations
from nbinspect.blocks import View, Text
from nbinspect.numerics.records import NanFinding, NanReport

def sentence(finding: NanFinding) -> str:
    return f"{finding.op} {finding.phase} {finding.where.label if finding.where else ''} {finding.why}"

def report_view(report: NanReport) -> View:
    return (Text(("x",), "headline"),)
