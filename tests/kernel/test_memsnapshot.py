"""`%memsnapshot` in a real kernel: a file, a picture to click on, one-line errors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from kerneldriver import Kernel
from made_up_snapshots import MIB, training, write


def test_a_file_is_shown_with_its_curve(kernel: Kernel, tmp_path: Path) -> None:
    path = write(tmp_path / "run.pickle", training(), packed=True)
    reply = kernel.ok(f"m = %memsnapshot {path}")
    assert len(reply.data) == 2
    assert "application/vnd.jupyter.widget-view+json" in reply.data[0]
    assert "The peak was 15.0 MiB" in reply.data[1]["text/plain"]
    assert "text/html" in reply.data[1]
    assert ast.literal_eval(kernel.value("(m.peak_bytes, m.allocated_bytes)")) == (
        15 * MIB,
        7 * MIB,
    )
    assert kernel.ok(f"%memsnapshot {path} -o kept ;").shown == []
    assert kernel.value("kept == m") == "True"
    kernel.ok("import ipywidgets; ipywidgets.Widget.close_all()")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("%memsnapshot", "name a snapshot file, or --record one"),
        ("%memsnapshot /none.pickle", "/none.pickle cannot be read: No such file or directory"),
        ("%memsnapshot /", "/ cannot be read: Is a directory"),
        ("%memsnapshot --record", "this process uses no CUDA device"),
        ("%memsnapshot x --record", "takes a file or --record, not both"),
        ("%memsnapshot x y", "unexpected argument y"),
        ("%memsnapshot x --device -1", "--device takes a whole number from 0 up, not -1"),
    ],
)
def test_usage_errors(kernel: Kernel, line: str, error: str) -> None:
    reply = kernel.run(line)
    assert reply.status == "error"
    assert reply.error.startswith(f"UsageError: %memsnapshot: {error}")
    assert len(reply.text("stderr").strip().splitlines()) == 1
