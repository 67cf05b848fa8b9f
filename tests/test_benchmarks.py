"""The benchmarks run, and print their tables; what the figures are is no test's business."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_quick_run_prints_machine_versions_and_a_table():
    done = benchmarks("load", "--quick")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Measured \d{4}-\d\d-\d\d on \d+ cores, .+; load", done.stdout, re.MULTILINE)
    assert re.search(r"^Machine: \d+ cores, .+ GiB RAM", done.stdout, re.MULTILINE)
    assert re.search(r"^Versions: Python 3.*, torch \d", done.stdout, re.MULTILINE)
    row = r"^%load_ext nbinspect, after import torch +[\d.]+ \[[\d.]+, [\d.]+\] +< 0.3 s: (met|MISSED)$"
    assert re.search(row, done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "'speed' is none of memory, census, "),
        (["load", "--quick", "--write"], "--write is for whole figures"),
    ],
)
def test_a_wrong_question_is_one_line(arguments, message):
    done = benchmarks(*arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def test_figures_are_shown_with_quartiles_and_a_missed_goal_says_so():
    from benchmarks.tables import Spread, Table, ratios, verdict

    assert ratios([(2.0, 2.0), (2.0, 4.0), (2.0, 6.0)]) == Spread(1.5, 2.0, 2.5, 3)
    assert Spread(0.0015, 0.002, 0.0025, 3).show(1e3, "ms", 1) == "2.0 [1.5, 2.5] ms"
    assert verdict(0.4, 0.5, " s") == "< 0.5 s: met"
    assert verdict(0.5, 0.5, " s") == "< 0.5 s: MISSED"
    table = Table("how long", ("what", "ms"), notes=["in one run"])
    table.add("a | b", "1.0")
    assert table.text() == "== how long\nwhat   ms\n---------\na | b  1.0\n   in one run"
    assert "| a / b | 1.0 |" in table.markdown()


def test_a_question_replaces_its_own_tables_alone(tmp_path, monkeypatch):
    from benchmarks import __main__ as command
    from benchmarks.tables import Table

    def table(title: str, figure: str) -> Table:
        made = Table(title, ("what", "ms"))
        made.add("one", figure)
        return made

    monkeypatch.setattr(command, "RESULTS", tmp_path / "RESULTS.md")
    for name, tables in (
        ("render", [table("render: pages", "1"), table("render: pictures", "2")]),
        ("memory", [table("memory: steps", "3")]),
        ("render", [table("render: pages", "4")]),
    ):
        command.RESULTS.write_text(command._markdown(["Machine: this"], name, tables))
    text = command.RESULTS.read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["memory: steps", "render: pages"]
    assert re.findall(r"\| one \| (\d)", text) == ["3", "4"]
    assert text.count("- Machine: this") == 1
