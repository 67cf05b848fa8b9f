"""Each planted fault is named, in exact and in light mode; each healthy step is left alone."""

from __future__ import annotations

import pytest
from healthy import HEALTHY
from judging import problems, report_of
from planted import FAULTS


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
@pytest.mark.filterwarnings("ignore")
def test_fault_is_named(light: bool) -> None:
    wrong = {fault.name: list(problems(fault, light=light)) for fault in FAULTS}
    assert not {name: what for name, what in wrong.items() if what}


@pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
@pytest.mark.filterwarnings("ignore")
def test_healthy_step_is_left_alone(light: bool) -> None:
    reports = {make.__name__: report_of(make(), light=light) for make in HEALTHY}
    found = {name: one.findings for name, one in reports.items()}
    assert not {name: one for name, one in found.items() if one}
    assert not {name: one.replay for name, one in reports.items() if one.replay}
    quiet = [name for name, one in reports.items() if not light and not one.n_ops]
    assert not quiet
