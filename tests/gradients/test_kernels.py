"""The kernels that read rows of numbers: compiled ones and NumPy's, held against exact sums."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nbinspect.gradients import near
from nbinspect.gradients.numpy_kernels import Row

SIZES = (1, 3, 31, 1024, 1025, 40_000, 300_001)
TYPES = (np.float32, np.float64)
ODD = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 1e-30, -1e-25, 3e38, -1e25)
pytestmark = pytest.mark.usefixtures("either_kernels")


def some(size, dtype, *, seed=0):
    return np.random.default_rng(seed).standard_normal(size).astype(dtype)


def at(row) -> Row:
    """Say where an array's numbers are."""
    return row.ctypes.data, row.size, row.dtype == np.float64


def norm(row):
    """Give the norm as exactly as doubles allow."""
    wide = row.astype(np.float64)
    largest = np.abs(wide).max(initial=0.0)
    if largest == 0 or not np.isfinite(largest):
        return float(largest)
    return float(largest * math.sqrt(math.fsum((wide / largest) ** 2)))


def same(found, expected, row):
    """Compare, to within what sums of single precision are apart."""
    share = 1e-5 if row.dtype == np.float32 else 1e-12
    assert found == pytest.approx(expected, rel=share, abs=share * norm(row), nan_ok=True)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", SIZES)
def test_each_figure_is_right_at_every_size(size, dtype):
    own, row, other = near.kernels(), some(size, dtype), some(size, dtype, seed=1)
    row[:: max(2, size // 50)] = 0
    found_norm, total, low, high, n_used = own.final(at(row))
    same(found_norm, norm(row), row)
    same(total, math.fsum(row), row * math.sqrt(size))
    assert (low, high, n_used) == (row.min(), row.max(), np.count_nonzero(row))
    assert own.nonzeros(at(row)) == np.count_nonzero(row)
    same(own.norm(at(row)), norm(row), row)
    found_norm, product = own.product(at(row), at(other))
    same(found_norm, norm(row), row)
    same(product, math.fsum(row.astype(float) * other), row * norm(other))
    same(own.difference(at(row), at(other)), norm(row - other), row)
    room = np.empty_like(row)
    same(own.copy(at(row), at(room)), norm(row), row)
    assert (room == row).all()


odd_rows = st.sampled_from(TYPES).flatmap(
    lambda dtype: arrays.arrays(
        dtype,
        st.integers(1, 70),
        elements=st.sampled_from([np.dtype(dtype).type(one).item() for one in ODD])
        | st.floats(-1e3, 1e3, width=32),
    )
)


@given(odd_rows)
@np.errstate(all="ignore")
def test_odd_numbers_are_told_as_they_are(row):
    own = near.kernels()
    found, _total, low, high, n_used = own.final(at(row))
    assert n_used == own.nonzeros(at(row)) == np.count_nonzero(row)
    assert np.array_equal([low, high], [row.min(), row.max()], equal_nan=True)
    here, room, zeros = at(row), row.copy(), np.zeros_like(row)
    for one in (found, own.norm(here), own.product(here, here)[0], own.copy(here, at(room))):
        same(one, norm(row), row)
    same(own.difference(here, here), 0.0 if np.isfinite(row).all() else math.nan, row)
    same(own.difference(here, at(zeros)), norm(row), row)


@np.errstate(all="ignore")
@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e18, 1e30])
def test_norms_are_right_where_squares_do_not_fit(scale):
    own, row = near.kernels(), some(2000, np.float32) * np.float32(scale)
    other = some(2000, np.float32, seed=1) * np.float32(scale)
    for found in (own.final(at(row))[0], own.norm(at(row)), own.product(at(row), at(other))[0]):
        assert found == pytest.approx(norm(row), rel=1e-5)
    exact = math.fsum(row.astype(float) * other)
    assert own.product(at(row), at(other))[1] == pytest.approx(exact, rel=1e-4)
    assert own.difference(at(row), at(other)) == pytest.approx(norm(row - other), rel=1e-5)


def test_threads_that_read_at_once_do_not_disturb_each_other():
    row, found = some(200_000, np.float32), []

    def read():
        own = near.kernels()
        found.extend(own.final(at(row)) for _ in range(50))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 200
    assert len(set(found)) == 1


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000])
def test_a_trace_is_of_a_few_numbers_of_the_whole_row(size, dtype):
    own, row = near.kernels(), some(size, dtype)
    assert own.trace(at(row)) == row[:: size // 16 + 1].tobytes()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [5, 40_000])
def test_rows_at_odd_addresses_are_read(size, dtype):
    own, row = near.kernels(), some(size, dtype)
    raw = bytearray(b"x" + row.tobytes())
    start = np.frombuffer(raw, np.uint8).ctypes.data
    odd: Row = (start + 1, size, dtype is np.float64)
    room = near.Room(odd)
    assert own.final(odd) == pytest.approx(own.final(at(row)), rel=1e-3)
    same(own.norm(odd), norm(row), row)
    same(own.copy(odd, room.row), norm(row), row)
    assert own.difference(odd, room.row) == own.difference(room.row, odd) == 0
    for found in (own.product(at(row), odd), own.product(odd, at(row))):
        same(found[1], norm(row) ** 2, row * norm(row))
    assert own.nonzeros(odd) == size
    assert own.trace(odd) == own.trace(at(row))
