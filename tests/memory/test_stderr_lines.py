"""What the profiler says on standard error stays out of the cell; nothing else does."""

import os
import subprocess
import sys

import pytest

from nbinspect.memory.stderr_lines import without_lines

PROFILED = """
import os, sys, threading, torch, nbinspect
for run in range(2):
    with nbinspect.memwatch(exact=True) as w:
        torch.randn(100, 100).sin()
        os.write(2, b"from C, run %d\\n" % run)
        print("from Python", file=sys.stderr, flush=True)
assert w.report.peak_bytes > 0
"""


def test_exact_adds_nothing_to_standard_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROFILED], capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == [
        "from C, run 0",
        "from Python",
        "from C, run 1",
        "from Python",
    ]


@pytest.mark.parametrize(
    ("written", "left"),
    [
        (b"", b""),
        (b"noise: a\n", b""),
        (b"a\nnoise: b\nc\n", b"a\nc\n"),
        (b"no line end", b"no line end"),
        (b"\xff\x00 not text\nnoise", b"\xff\x00 not text\n"),
    ],
)
def test_only_marked_lines_go(
    written: bytes, left: bytes, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with without_lines(b"noise"):
        os.write(2, written)
    assert capfdbinary.readouterr().err == left


def test_an_error_passes_and_standard_error_is_back(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    def interrupted() -> None:
        with without_lines(b"noise"):
            os.write(2, b"before\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    os.write(2, b"noise after\n")
    assert capfdbinary.readouterr().err == b"before\nnoise after\n"


def test_a_process_without_standard_error_works_as_before() -> None:
    code = """
import os
from nbinspect.memory.stderr_lines import without_lines
os.close(2)
with without_lines(b"noise"):
    print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"done"
