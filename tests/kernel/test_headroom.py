"""`%headroom` and `%%headroom` as their user meets them."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from kerneldriver import Kernel

PREPARE = """
import torch, nbinspect
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
torch.nn.init.constant_(model[1].weight, 1e5)
x = torch.ones(4, 8)
calls = []
def train_step(x):
    calls.append(1)
    loss = model(x).square().mean()
    loss.backward()
    return loss
"""


@pytest.fixture(scope="module", autouse=True)
def prepared(module_kernel: Kernel) -> None:
    module_kernel.ok(PREPARE)


def plain(kernel: Kernel, expression: str) -> Any:
    return ast.literal_eval(kernel.value(expression))


def test_line_is_run_once_and_shown_once(kernel: Kernel) -> None:
    kernel.ok("calls.clear(); before = [p.clone() for p in model.parameters()]")
    reply = kernel.ok("m = %headroom train_step(x) -o kept")
    assert len(reply.texts("display")) == 1
    assert {"text/plain", "text/html"} <= set(reply.data[0])
    assert "would overflow first" in reply.text("display")
    assert plain(kernel, "calls") == [1]
    assert plain(kernel, "m is kept")
    first = plain(
        kernel,
        "(lambda f: (f.op, f.module, f.where.cell is not None, f.where.text))(m.first_overflow)",
    )
    assert first == ("aten.addmm", "model.1", True, "loss = model(x).square().mean()")
    assert plain(kernel, "all(map(torch.equal, before, model.parameters()))")
    assert kernel.ok("%headroom train_step(x) ;").shown == []


def test_an_operation_of_the_line_itself_names_the_line(kernel: Kernel) -> None:
    reply = kernel.ok("y = 1\nm = %headroom (x * 1e3).square() --top 3 ;")
    where = plain(kernel, "(lambda w: (w.cell, w.lineno, w.text))(m.forecasts[2].first.where)")
    assert where == (reply.count, 2, "m = %headroom (x * 1e3).square() --top 3 ;")


@pytest.mark.parametrize("head", ["%%headroom -o m", "%%time\n%%headroom -o m"])
def test_cell(kernel: Kernel, head: str) -> None:
    reply = kernel.ok(f"{head}\nloss = model(x).square().mean()\nloss.backward()\n'value'")
    assert "'value'" in reply.texts("result")
    assert len(reply.texts("display")) == 1
    line = head.count("\n") + 2
    assert plain(kernel, "m.first_overflow.where.lineno") == line
    assert plain(kernel, "m.first_overflow.where.cell") == reply.count


def test_cell_that_fails_awaits_or_is_interrupted(kernel: Kernel) -> None:
    reply = kernel.run("%%headroom -o m\nmodel(x)\nx @ torch.ones(3)")
    assert reply.error.startswith("RuntimeError: ")
    assert "nbinspect" not in reply.text("error")
    assert plain(kernel, "m.error") == "RuntimeError"
    kernel.ok("%%headroom -o m\nimport asyncio\nmodel(x)\nawait asyncio.sleep(0)\nmodel(x);")
    assert plain(kernel, "max(one.n_calls for one in m.ops if one.op == 'aten.addmm')") == 1
    reply = kernel.interrupted("%%headroom -o m\nprint('go', flush=True)\nwhile True: x * 2")
    assert reply.error == "KeyboardInterrupt: "
    assert plain(kernel, "m.error") == "KeyboardInterrupt"


def test_an_error_of_the_expression_is_the_users_own(kernel: Kernel) -> None:
    kernel.ok("def bad(x):\n    return x @ torch.ones(3)")
    reply = kernel.run("%headroom bad(x)")
    assert reply.error.startswith("RuntimeError: ")
    assert "return x @ torch.ones(3)" in reply.text("error")
    assert "nbinspect/" not in reply.text("error")
    assert kernel.run("%headroom 1 / 0").error == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("%headroom", "%headroom: name what to run, e.g. %headroom train_step(x, y)"),
        ("%headroom train_stpe(x)", "%headroom: there is no train_stpe; did you mean train_step?"),
        ("%headroom 1 +", "%headroom: 1 + is no expression: invalid syntax"),
        ("%headroom x --top 0", "%headroom: --top takes a whole number from 1 up, not 0"),
        ("%%headroom --nope\nran = 1", "%%headroom: unknown option --nope"),
    ],
)
def test_usage_errors(kernel: Kernel, line: str, error: str) -> None:
    reply = kernel.run(line)
    assert reply.status == "error"
    assert reply.error.startswith(f"UsageError: {error}")
    assert len(reply.text("stderr").strip().splitlines()) == 1
    assert plain(kernel, "'ran' in globals()") is False


def test_help_and_tab(kernel: Kernel) -> None:
    assert "How near do values come to overflow" in kernel.ok("%headroom?").help
    assert "%headroom train_step(x, y)" in kernel.ok("%headroom?").help
    assert "--top" in kernel.complete("%headroom train_step(x) --")
    assert "--top" in kernel.complete("%%headroom --")
    assert "train_step" in kernel.complete("%headroom train_s")
    assert "model.train" in kernel.complete("%headroom model.tra")
