"""Trainings of several processes: each names its own fault, none hangs, and nothing is changed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "distributed_runs.py"
needs_gloo = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch has no torch.distributed"
)


def runs(kind: str, n_processes: int, file: Path) -> list[dict[str, dict[str, Any]]]:
    """Run all of it, and give what each process printed, by run."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), kind, str(rank), str(n_processes), str(file)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(n_processes)
    ]  # fmt: skip
    printed = []
    for process in processes:
        out, errors = process.communicate(timeout=250)
        assert process.returncode == 0, errors[-3000:]
        lines = map(json.loads, out.splitlines())
        printed.append({str(one["run"]): one for one in lines})
    return printed


def watched(printed: dict[str, dict[str, Any]], fault: str) -> Iterator[tuple[bool, bool, Any]]:
    for light in (False, True):
        for stop in (False, True):
            yield light, stop, printed[str([fault, light, stop])]


@needs_gloo
@pytest.mark.parametrize(
    ("kind", "n_processes"), [("DDP", 1), ("DDP", 2), ("FSDP", 1), ("FSDP", 2)]
)
def test_each_process_names_its_own(kind: str, n_processes: int, tmp_path: Path) -> None:
    for rank, printed in enumerate(runs(kind, n_processes, tmp_path / "meet")):
        for fault in ("none", "forward", "rank 0", "backward"):
            plain = printed[str([fault, "plain"])]["numbers"]
            for light, stop, run in watched(printed, fault):
                assert not run["notes"]
                assert stop or run["numbers"] == plain
                assert bool(run["message"]) == (stop and fault != "none")
                check(
                    fault, rank, n_processes, run["found"], can_replay=not light or n_processes == 1
                )


def check(fault: str, rank: int, n_processes: int, found: list[Any], *, can_replay: bool) -> None:
    if fault == "none":
        assert not found
        return
    [(op, phase, reaches, line, why)] = found
    if fault == "rank 0" and rank:
        assert set(reaches) <= {"grad", "parameter"}
        assert "another one may have made it" in why
    elif can_replay:
        named = "backward" if fault == "backward" else "forward"
        assert (op, phase) == ("aten.div", named)
        assert f"# <- {named}" in line
    else:
        assert op == "unknown"
        assert n_processes > 1
