"""What only compiled kernels can get wrong: arguments, and what they hold on to."""

from __future__ import annotations

import importlib.util
import shutil
import sys

import numpy as np
import psutil
import pytest

from nbinspect import gradients
from nbinspect.gradients import near
from nbinspect.gradients.numpy_kernels import NumpyKernels

MODULE = "nbinspect.gradients._kernels"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_they_are_there_if_a_compiler_is():
    assert importlib.util.find_spec(MODULE) is not None


@pytest.fixture
def compiled():
    return pytest.importorskip(MODULE, reason="it was not compiled")


@pytest.mark.usefixtures("compiled")
def test_they_are_taken_if_they_are_there(monkeypatch):
    assert isinstance(near.kernels(), near.CompiledKernels)
    monkeypatch.delattr(gradients, "_kernels")
    monkeypatch.setitem(sys.modules, MODULE, None)
    assert isinstance(near.kernels(), NumpyKernels)


ROW = np.ones(4, np.float32)
HERE = (ROW.ctypes.data, 4, False)


@pytest.mark.parametrize(
    "rows",
    [
        (ROW,),
        ("abc",),
        (HERE[:2],),
        (("abc", 4, False),),
        ((ROW.ctypes.data, 4.0, False),),
        (HERE, HERE),
        (),
    ],
)
def test_what_is_no_row_is_refused(compiled, rows):
    for name in ("final", "norm", "nonzeros", "trace"):
        with pytest.raises(TypeError):
            getattr(compiled, name)(*rows)


@pytest.mark.parametrize("row", [(0, 4, False), (ROW.ctypes.data, -1, False), (1 << 70, 4, False)])
def test_rows_that_cannot_be_are_refused(compiled, row):
    with pytest.raises((ValueError, OverflowError)):
        compiled.norm(row)


@pytest.mark.parametrize("other", [(HERE[0], 3, False), (HERE[0], 2, True), (0, 4, False)])
@pytest.mark.parametrize("name", ["product", "copy", "difference"])
def test_pairs_that_do_not_fit_are_refused(compiled, name, other):
    with pytest.raises(ValueError, match="row"):
        getattr(compiled, name)(HERE, other)
    with pytest.raises(ValueError, match="row"):
        getattr(compiled, name)(other, HERE)


def test_nothing_is_written_where_no_number_can_be(compiled):
    room = np.zeros(32, np.uint8)
    with pytest.raises(ValueError, match="rows"):
        compiled.copy(HERE, (room.ctypes.data + 1, 4, False))
    assert not room.any()


def test_no_memory_is_kept(compiled):
    row = np.ones(100_001, np.float32)
    odd = (row.ctypes.data + 1, 100_000, False)
    before = psutil.Process().memory_info().rss
    for _ in range(500):
        compiled.product(odd, odd)
        with pytest.raises(ValueError, match="rows"):
            compiled.difference(odd, HERE)
    assert psutil.Process().memory_info().rss - before < 20 << 20  # of 400 MB that were asked for
