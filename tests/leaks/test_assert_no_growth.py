"""A found leak as a test: what fails, what passes, what is said; the fixture of the same name."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from torch import nn

import nbinspect

KEPT: list[torch.Tensor] = []


@pytest.fixture
def step():
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters())

    def run() -> torch.Tensor:
        loss = model(torch.ones(16, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    run()
    return run


def test_a_healthy_step_passes(step):
    with nbinspect.assert_no_growth():
        for _ in range(3):
            step()


def test_variables_that_are_bound_anew_are_no_growth(step):
    with nbinspect.assert_no_growth():
        for _ in range(3):
            loss = step()
            batch = [loss + 1, {"x": torch.ones(100)}]
            out = nn.functional.relu(loss * 2)
    assert len(batch) == 2
    assert out.ndim == 0


def grow(times: int) -> None:
    with nbinspect.assert_no_growth():
        KEPT.extend(torch.ones(250) for _ in range(times))


@pytest.mark.parametrize("times", [1, 3])
def test_what_stays_is_named_with_its_line_and_mend(times):
    KEPT.clear()
    with pytest.raises(AssertionError, match=r"stayed behind") as caught:
        grow(times)
    said = str(caught.value)
    assert said.startswith("1000 B of" if times == 1 else "2.93 KiB of")
    assert "KEPT" in said
    assert "test_assert_no_growth.py:" in said
    KEPT.clear()


def carry(detach: bool) -> None:
    cell, hidden = nn.GRUCell(4, 8), torch.zeros(2, 8)
    with nbinspect.assert_no_growth():
        for _ in range(5):
            hidden = cell(torch.ones(2, 4), hidden.detach() if detach else hidden)


def test_a_state_whose_graph_gets_longer_is_growth():
    carry(detach=True)
    with pytest.raises(AssertionError, match=r"start each with `hidden\.detach\(\)`"):
        carry(detach=False)


def test_what_replaces_something_counts_by_the_difference():
    holder = {"a": [torch.ones(100)]}
    with nbinspect.assert_no_growth():
        holder["a"][0] = torch.ones(100)
    with (
        pytest.raises(AssertionError, match=r"^400 B"),
        nbinspect.assert_no_growth(),
    ):
        holder["a"].append(torch.ones(100))
    with nbinspect.assert_no_growth(tolerance_bytes=400):
        holder["a"].append(torch.ones(100))


def test_the_blocks_own_error_goes_on():
    error = ValueError("mine")

    def fails() -> None:
        with nbinspect.assert_no_growth():
            KEPT.append(torch.ones(10))
            raise error

    with pytest.raises(ValueError, match="mine") as caught:
        fails()
    assert caught.value is error
    del caught
    error.__traceback__ = None
    KEPT.clear()


TESTS = """
import torch
kept = []
def test_healthy(assert_no_growth):
    with assert_no_growth():
        for _ in range(3):
            torch.ones(10).sum()
def test_leaky(assert_no_growth):
    with assert_no_growth():
        kept.append(torch.ones(250))
"""


def test_the_fixture_in_a_run_of_pytest(tmp_path):
    (tmp_path / "test_mine.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "nbinspect.leaks.fixture",
        "test_mine.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "1000 B of tensors stayed behind" in done.stdout


def test_the_fixture_comes_with_the_package():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert (
        '[project.entry-points.pytest11]\n"nbinspect.leaks.fixture" = "nbinspect.leaks.fixture"'
        in project
    )
    installed = [one for one in entry_points(group="pytest11") if "nbinspect" in one.value]
    assert all(one.name == one.value == "nbinspect.leaks.fixture" for one in installed)
