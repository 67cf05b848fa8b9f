"""`%%leakwatch` in a real kernel: the cell runs N times as the plain cell it is."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from kerneldriver import Kernel

PREPARE = """
import asyncio, torch, nbinspect
torch.set_num_threads(1)
runs, losses, model = 0, [], torch.nn.Linear(64, 64)
"""


@pytest.fixture(autouse=True)
def prepared(kernel: Kernel) -> None:
    kernel.ok(PREPARE)


def plain(kernel: Kernel, expression: str) -> Any:
    return ast.literal_eval(kernel.value(expression))


def test_await_lines_value_and_record(kernel: Kernel) -> None:
    reply = kernel.ok(
        "%%leakwatch 3 -o r\nfrom __future__ import annotations\nruns += 1\n"
        "await asyncio.sleep(0)\nlosses.append(model(torch.randn(32, 64)).relu().sum())\nruns"
    )
    assert reply.texts("result") == ["4"]
    (shown,) = reply.texts("display")
    assert shown.startswith("+16.0 KiB each run: `losses` (list, +1 item) keeps the graph of")
    assert plain(
        kernel, "(runs, r.n, r.healthy, r.growths[0].where.cell, r.growths[0].where.lineno)"
    )
    where = plain(kernel, "(r.growths[0].where.cell, r.growths[0].where.lineno)")
    assert where == (reply.count, 5)
    assert plain(kernel, "(runs, len(losses), r.n, r.n_warmup, r.healthy)") == (4, 4, 3, 1, False)
    assert plain(kernel, "[n for n in globals() if n.startswith('_nbinspect')]") == []


@pytest.mark.parametrize(
    ("code", "runs", "result"),
    [
        ("%%leakwatch 2\nruns += 1\nruns;", 3, []),
        ("%%leakwatch 2 --warmup 0\nruns += 1\nruns", 2, ["2"]),
        ("%%time\n%%leakwatch 2\nruns += 1\nruns", 3, ["3"]),
        ("%%leakwatch 2\n%%time\nruns += 1", 3, []),
        ("%%leakwatch 2\nget_ipython().run_cell('runs += 1').result", 3, []),
        ("%%leakwatch 2\n%time runs += 1", 3, []),
    ],
)
def test_how_often_it_runs_and_what_is_shown(
    kernel: Kernel, code: str, runs: int, result: list[str]
) -> None:
    reply = kernel.ok(code)
    assert plain(kernel, "runs") == runs
    assert reply.texts("result") == result
    assert len(reply.texts("display")) == 1


def test_what_ends_it_early(kernel: Kernel) -> None:
    reply = kernel.run("%%leakwatch 5\nruns += 1\n1 / (4 - runs)")
    assert (reply.status, reply.error) == ("error", "ZeroDivisionError: division by zero")
    assert f"Cell In[{reply.count}], line 3" in reply.text("error")
    assert "nbinspect" not in reply.text("error")
    assert "ended it after 3 whole repetitions" in reply.text("display")
    reply = kernel.interrupted("%%leakwatch 5\nprint('go', flush=True)\nwhile True: pass")
    assert (reply.status, reply.error) == ("error", "KeyboardInterrupt: ")
    assert "before anything could be compared" in reply.text("display")
    reply = kernel.run("%%leakwatch 5\nruns = 99\nbreak")
    assert (reply.status, plain(kernel, "runs")) == ("error", 99)  # as a plain cell
    assert "'break' outside loop" in reply.error
    reply = kernel.run("%%leakwatch 5\nx = = 1")
    assert (reply.status, reply.texts("display")) == ("error", [])
    assert plain(kernel, "[n for n in globals() if n.startswith('_nbinspect')]") == []


def test_values_kept_in_out(kernel: Kernel) -> None:
    """ipython#11204: each shown value stays."""
    kernel.ok(
        "%%leakwatch 3 -o r\n"
        "get_ipython().run_cell('torch.ones(1000, 25) + 0', store_history=True);"
    )
    found = plain(kernel, "[(g.pattern, g.bytes_per_run, g.code) for g in r.growths]")
    code = (
        "get_ipython().displayhook.flush(); "
        "get_ipython().push(dict.fromkeys(('_', '__', '___'), ''), interactive=False)"
    )
    assert found == [("values kept in Out", 100_000, code)]
    before = "sum(d.tracked_bytes for d in nbinspect.gpumem().devices)"
    held = plain(kernel, before)
    kernel.ok(code)
    assert held - plain(kernel, before) >= 4 * 100_000


def test_isolate_finds_the_parts_in_the_cell(kernel: Kernel) -> None:
    kernel.ok(
        "data = torch.utils.data.TensorDataset(torch.ones(8, 64), torch.ones(8))\n"
        "loader = torch.utils.data.DataLoader(data, 4)\nseen = []\n"
        "hook = model.register_forward_hook(lambda m, i, o: seen.append(o.detach()))\n"
        "def epoch():\n    for x, y in loader:\n        model(x).sum().backward()\n"
    )
    reply = kernel.ok("%%leakwatch 2 --isolate -o r\nepoch()")
    assert "Which part grows" in reply.text("display")
    suspects = dict(plain(kernel, "[(p.part, p.suspect) for p in r.by_part]"))
    assert [part for part, suspect in suspects.items() if suspect] == ["forward"]
    reply = kernel.ok("%%leakwatch 2 --model nosuch\nepoch()")
    assert "nosuch" in reply.text("display") + reply.text("stderr")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("%%leakwatch 1", "N takes a whole number from 2 up, not 1"),
        ("%%leakwatch x", "N takes a whole number from 2 up, not x"),
        ("%%leakwatch 3 4", "unexpected argument 4"),
        ("%%leakwatch --warmup -1", "--warmup takes a whole number from 0 up, not -1"),
        ("%%leakwatch --nope", "unknown option --nope"),
    ],
)
def test_usage_errors(kernel: Kernel, line: str, error: str) -> None:
    reply = kernel.run(f"{line}\nruns = 99")
    assert reply.status == "error"
    assert error in reply.error
    assert plain(kernel, "runs") == 0
