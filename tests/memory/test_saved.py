"""A saved answer is read and shown where torch cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch

import nbinspect

READ = """
import json, sys
sys.modules["torch"] = None
sys.modules["IPython"] = None
from nbinspect.memory import MemoryDiff, MemoryReport, MemorySnapshot
from nbinspect.referrers.records import ReferenceReport, ReferenceSurvey
kinds = (MemoryDiff, MemoryReport, MemorySnapshot, ReferenceReport, ReferenceSurvey)
kinds = {one.__name__: one for one in kinds}
for line in open(sys.argv[1]):
    name, plain = json.loads(line)
    record = kinds[name].from_dict(plain)
    assert record.to_dict() == plain
    sys.stdout.write(record.text() + chr(10))
    assert record.html().startswith("<")
    assert "<svg" in record.svg()
    assert record.png().startswith(bytes([137]) + b"PNG")
"""


def test_records_without_torch(tmp_path: Path) -> None:
    with nbinspect.memwatch() as watch:
        model = torch.nn.Linear(100, 100)
        loss = model(torch.ones(3, 100)).sum()
    before, report = nbinspect.gpumem(), watch.report
    why = nbinspect.refchain(loss, name="loss")
    del loss
    largest = nbinspect.refchain_largest("Tensor", 2)
    records = [before, before.diff(nbinspect.gpumem()), report, why, largest]
    lines = [json.dumps([type(one).__name__, one.to_dict()]) for one in records]
    file = tmp_path / "records.jsonl"
    file.write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-c", READ, str(file)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for record in records:
        assert record.text() in done.stdout
