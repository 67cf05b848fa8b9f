"""A device that other processes use too; `emulation/run.py` says how much they hold."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    "NBINSPECT_EMULATED_CUDA" not in os.environ, reason="only the emulated device has neighbours"
)

NEIGHBOURS = """
import sys
import torch, nbinspect
GIB = 1 << 30
held = torch.empty(GIB, dtype=torch.uint8, device="cuda")
found = nbinspect.gpumem().device("cuda")
assert found.total_bytes == 4 * GIB, found.total_bytes
assert found.others_bytes == 2 * GIB, found.others_bytes
assert found.process_bytes == found.free_bytes == GIB, found
try:
    torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    sys.last_value = error
oom = nbinspect.traceback_memory().oom
assert (oom.asked_bytes, oom.total_bytes, oom.free_bytes) == (2 * GIB, 4 * GIB, GIB), oom
assert oom.allocated_bytes == GIB, oom
"""


def test_what_other_processes_hold_is_told_apart():
    gib = 1 << 30
    sizes = {"EMULATED_CUDA_BYTES": str(4 * gib), "EMULATED_CUDA_OTHERS": str(2 * gib)}
    done = subprocess.run(
        [sys.executable, "-c", NEIGHBOURS],
        env={**os.environ, **sizes},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
