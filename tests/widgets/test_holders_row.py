"""The holder row: taken between cells, and only where nobody has to wait for it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import torch

import nbinspect
from nbinspect.widgets.holders_row import HolderBars


@dataclass
class Clock:
    """A clock that a test moves; each census moves it on by its cost."""

    now: float = 1000.0
    cost_s: float = 0.01
    n_taken: int = 0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock, real = Clock(), nbinspect.gpumem

    def timed():
        clock.n_taken += 1
        clock.now += clock.cost_s
        return real()

    monkeypatch.setattr(nbinspect, "gpumem", timed)
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    return clock


def test_the_row_says_what_the_census_says(clock):
    held = torch.nn.Linear(100, 10)
    row = HolderBars()
    assert row.refresh()
    expected = nbinspect.gpumem().device("cpu").by_kind
    (bar,) = row.to_page()["bars"]
    assert [(part["hue"], part["size_bytes"]) for part in bar["segments"]] == list(expected)
    assert bar["label"] == "cpu, by holder"
    assert all(part["fill"].startswith("#") for part in bar["segments"])
    del held


def test_quick_cells_share_one_census(clock):
    row = HolderBars()
    clock.cost_s = 0.1
    for _ in range(20):
        row.refresh()
        clock.now += 0.05
    assert clock.n_taken == 1
    clock.now += 2.0
    assert row.refresh()


def test_a_slow_census_is_not_taken_again_and_its_age_is_known(clock):
    row = HolderBars()
    clock.cost_s = 0.5
    assert row.refresh()
    clock.now += 60
    assert not row.slow, "the first also loads code"
    assert row.refresh()
    clock.now += 3600
    assert row.slow
    assert not row.refresh()
    assert row.to_page()["slow"]
    assert row.to_page()["cost_s"] == pytest.approx(0.5)
    assert clock.now - row.to_page()["t"] == pytest.approx(3600)


def test_a_census_that_fails_is_its_reason(clock, monkeypatch):
    def broken():
        raise RuntimeError("heap changed")

    monkeypatch.setattr(nbinspect, "gpumem", broken)
    row = HolderBars()
    assert row.refresh()
    assert row.to_page()["error"] == "RuntimeError: heap changed"
    assert row.to_page()["bars"] == []


def test_no_tensor_is_kept_by_the_row(clock):
    row = HolderBars()
    tensor = torch.ones(1000)
    row.refresh()
    import weakref

    alive = weakref.ref(tensor)
    del tensor
    assert alive() is None
