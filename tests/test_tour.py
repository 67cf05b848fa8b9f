"""The tour, run from its first cell to its last in a real kernel: does each mistake get found?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import nbformat

TOUR = Path(__file__).parent.parent / "notebooks" / "tour.ipynb"


@pytest.fixture(scope="module")
def tour() -> list[nbformat.NotebookNode]:
    import nbformat  # its schemas are 100,000 objects, which each inspector would look through
    from nbclient import NotebookClient

    notebook = nbformat.read(TOUR, as_version=4)
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: nbformat.NotebookNode, kind: str = "text/plain") -> str:
    return "\n".join(output.data[kind] for output in cell.outputs if kind in output.get("data", {}))


def answer_after(tour: list[nbformat.NotebookNode], source: str) -> str:
    """Give what the first %gpumem after a cell that has `source` says."""
    start = next(i for i, cell in enumerate(tour) if source in cell.source)
    cells = (cell for cell in tour[start + 1 :] if cell.source.startswith("%gpumem"))
    return " ".join(shown(next(cells)).split())  # names may be broken between two words


@pytest.mark.parametrize(
    ("mistake", "owner", "mend"),
    [
        ("losses.append(", "losses[0..7]", "losses[:] = [one.detach() for one in losses]"),
        ("model[:4](images).flatten(1)", "Out[9]", "Out.pop(9, None)"),
        ("def evaluate():", "frame evaluate()", "sys.last_traceback.tb_next = None"),
        ("prototype = features[0]", "prototype", "prototype = prototype.clone()"),
        ("handle = remember(", "hook save_output on model.2", ""),
    ],
)
def test_each_mistake_is_found_with_its_mend(tour, mistake, owner, mend):
    answer = answer_after(tour, mistake)
    assert owner in answer.split("cpu:")[0], "the first sentence names it"
    assert mend in answer


def test_each_mend_helps(tour):
    answers = [shown(cell) for cell in tour if cell.source.startswith("%gpumem --top")]
    for owner, later in zip(
        ("losses[", "Out[9]", "evaluate()", "prototype"), answers[1:], strict=True
    ):
        assert owner not in later.split("cpu:")[0]


def test_only_the_cells_that_are_meant_to_fail(tour):
    failed = [cell.source for cell in tour if any(o.output_type == "error" for o in cell.outputs)]
    assert len(failed) == 2
    assert "def evaluate():" in failed[0]
    assert failed[1].startswith("%%nanwatch\n")


def test_the_nan_is_found_where_it_was_made_and_the_mend_helps(tour):
    watched = [cell for cell in tour if cell.source.startswith("%%nanwatch")]
    answer = " ".join(shown(watched[0]).split())
    assert "`div` made NaN" in answer
    assert "`scaled = (images - low) / (high - low)`" in answer
    assert "scaled = (images - low) / (high - low).clamp(min=1e-6)" in answer
    assert "the weights are intact" in answer
    assert shown(watched[1]).startswith("No NaN or Inf reached")


def test_every_answer_is_there_as_text_and_as_html(tour):
    for cell in tour:
        if cell.source.startswith(("%gpumem", "%%memwatch")):
            assert shown(cell)
            assert shown(cell, "text/html")


def test_a_chain_leads_through_the_graph_to_the_list(tour):
    asked = next(cell for cell in tour if "%refchain hidden" in cell.source)
    answer = " ".join(shown(asked).split())
    assert "is alive because the graph of `losses[0]` saved a view of it for backward." in answer
    assert "references explained" in answer
    assert "losses[:] = [one.detach() for one in losses]" in answer


def test_the_watch_shows_the_peak_and_the_lines(tour):
    watched = next(cell for cell in tour if cell.source.startswith("%%memwatch\n"))
    text = shown(watched)
    assert text.startswith("Peak ")
    assert "loss = criterion(model(x), y)" in text
    assert "model.2" in text


def test_the_graph_tells_where_a_path_is_cut(tour):
    asked = next(cell for cell in tour if "%autograd loss" in cell.source)
    assert "`loss` (scalar float32) was made by" in " ".join(shown(asked).split())
    watched = next(cell for cell in tour if cell.source.startswith("%%graphwatch"))
    answer = " ".join(shown(watched).split())
    assert "`loss` does not reach 4 parameters" in answer
    assert "`model[:4](x).detach()` in In[" in answer
    assert "features = model[:4](x)" in answer


def test_it_runs_on_a_machine_without_a_gpu_or_a_network(tour):
    sources = "\n".join(cell.source for cell in tour)
    assert "cuda" not in sources
    assert "http" not in sources


def test_vanishing_gradients_and_growth_are_named(tour):
    (gradients,) = [cell for cell in tour if cell.source.startswith("%%gradwatch")]
    assert "vanish" in " ".join(shown(gradients).split()).lower()
    (growth,) = [cell for cell in tour if cell.source.startswith("%%leakwatch")]
    assert "`curve`" in shown(growth).split("kept by")[0]
