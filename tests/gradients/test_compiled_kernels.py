"""What only compiled kernels can get wrong: arguments, and what they hold on to."""

from __future__ import annotations

import importlib.util
import shutil
import sys

import numpy as np
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


@pytest.mark.parametrize(
    "rows",
    [
        (np.arange(3),),
        (np.zeros(3, np.float16),),
        (np.zeros(3, ">f4"),),
        (np.zeros(3, "f4"), np.zeros(3, "f4")),
        ("abc",),
        (),
    ],
)
def test_other_rows_are_refused(compiled, rows):
    with pytest.raises(TypeError):
        compiled.norm(*rows)


@pytest.mark.parametrize(
    "rows",
    [
        (np.zeros(3, "f4"), np.zeros(4, "f4")),
        (np.zeros(4, "f4"), np.zeros(2, "f8")),
        (np.zeros(6, "f4")[::2], np.zeros(3, "f4")),
        (np.zeros(3, "f4"), np.broadcast_to(np.float32(1), 3)),
    ],
)
@pytest.mark.parametrize("name", ["product", "copy", "difference"])
def test_pairs_that_do_not_fit_are_refused(compiled, name, rows):
    with pytest.raises((TypeError, ValueError)):
        getattr(compiled, name)(*rows)


def test_a_row_that_must_not_be_written_is_not(compiled):
    room = np.zeros(3, np.float32)
    room.flags.writeable = False
    with pytest.raises((TypeError, ValueError)):
        compiled.copy(np.ones(3, np.float32), room)
    assert not room.any()


@pytest.mark.parametrize("size", [4, 80_000])
def test_no_row_is_held_afterwards(compiled, size):
    bytes_ = [bytearray(4 * size) for _ in range(2)]
    views = [memoryview(one).cast("f") for one in bytes_]
    for name in ("final", "norm", "nonzeros"):
        getattr(compiled, name)(views[0])
    for name in ("product", "copy", "difference"):
        getattr(compiled, name)(*views)
        with pytest.raises(ValueError):
            getattr(compiled, name)(views[0], views[1][:-1])
    for view, one in zip(views, bytes_, strict=True):
        view.release()
        one.extend(b"grows")  # refused while anybody looks at it
