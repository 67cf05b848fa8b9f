"""A history as CSV, JSON and a data frame, and two histories beside each other."""

from __future__ import annotations

import csv
import json
import math
import sys
import tracemalloc

import pytest
import torch
from loops import mlp, squares, train

from nbinspect import GradientHistory, gradwatch


def history(lr: float = 0.01, n_steps: int = 3, *, spoil: int | None = None) -> GradientHistory:
    """Train the same model on the same data, with a NaN in one step if asked for."""
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with gradwatch() as w:
        for step in range(n_steps):
            optimizer.zero_grad()
            scale = math.nan if step == spoil else 1.0
            (squares(model, torch.randn(8, 16)) * scale).backward()
            optimizer.step()
    return w.report


def test_csv_has_a_line_for_each_step_and_parameter(tmp_path):
    report = history()
    report.to_csv(tmp_path / "run.csv")
    with (tmp_path / "run.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 3 * 6
    first, one = lines[0], report.steps[0].parameters[0]
    assert (first["step"], first["name"]) == ("0", "model.0.weight")
    assert float(first["loss"]) == report.steps[0].loss
    assert float(first["grad_norm"]) == one.grad_norm
    assert float(first["update_ratio"]) == one.update_ratio
    assert first["cosine"] == ""  # there is no step before
    assert lines[6]["cosine"] != ""
    assert {float(line["learning_rate"]) for line in lines} == {0.01}


def test_json_can_be_read_by_anything(tmp_path):
    report = history(spoil=1)
    text = report.to_json()
    assert report.to_json(tmp_path / "run.json") is None
    assert (tmp_path / "run.json").read_text() == text
    found = json.loads(text)
    steps = found["steps"]
    assert [step["index"] for step in steps] == [0, 1, 2]
    assert [one["name"] for one in steps[0]["parameters"]] == [p.name for p in report.parameters]
    assert steps[0]["parameters"][0]["grad_norm"] == report.steps[0].parameters[0].grad_norm
    assert steps[1]["loss"] == "nan"
    assert "unavailable" in steps[1]["clip_factor"]
    assert found["findings"][0]["kind"] == "NAN"
    well = history()
    assert GradientHistory.from_dict(json.loads(json.dumps(well.to_dict()))) == well


def test_a_long_run_is_written_in_the_memory_of_a_step(tmp_path):
    report = history(n_steps=300)
    tracemalloc.start()
    try:
        report.to_json(tmp_path / "run.json")
        report.to_csv(tmp_path / "run.csv")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < (tmp_path / "run.json").stat().st_size / 3


def test_a_data_frame_has_the_same_rows():
    pandas = pytest.importorskip("pandas", reason="an extra of its own")
    report = history()
    frame = report.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 3 * 6
    one = frame[(frame.step == 2) & (frame.name == "model.0.weight")].iloc[0]
    assert one.grad_norm == report.steps[2]["model.0.weight"].grad_norm
    norms = frame[frame.step == 1].grad_norm
    assert math.sqrt((norms**2).sum()) == pytest.approx(report.steps[1].grad_norm)


def test_without_pandas_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'nbinspect\[pandas\]'.*to_csv and to_json"):
        history().to_pandas()


def test_two_runs_beside_each_other():
    before, after = history(lr=0.01, n_steps=4), history(lr=0.05, n_steps=5)
    found = after.compare(before)
    assert found.n_steps == (5, 4)
    assert found.first_difference == 1  # the first step starts from the same weights
    assert found.losses == (after.steps[-1].loss, before.steps[-1].loss)
    row = next(one for one in found.parameters if one.name == "model.0.weight")
    norms = sorted(step["model.0.weight"].grad_norm for step in after.steps)
    assert row.grad_norm == pytest.approx(norms[2])
    assert row.update_ratio / row.other_update_ratio == pytest.approx(5, rel=0.5)
    text = " ".join(found.text().split())
    assert "The runs differ from step 1 on" in text
    assert "model.0.weight" in text


def test_the_same_run_twice_and_another_model():
    one, same = history(), history()
    assert one.compare(same).first_difference is None
    assert "No difference in loss or gradient norm." in one.compare(same).text()
    other = mlp(depth=2)
    with gradwatch() as w:
        train(other, torch.optim.SGD(other.parameters(), lr=0.1), 2)
    names = {row.name: row for row in w.report.compare(one).parameters}
    assert names["other.0.weight"].other_grad_norm is None
    assert names["model.0.weight"].grad_norm is None
