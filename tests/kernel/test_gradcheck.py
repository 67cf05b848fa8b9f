"""`%gradcheck` as its user meets it."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from kerneldriver import Kernel

PREPARE = """
import torch, nbinspect
torch.set_num_threads(1)
class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w
    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient * w, gradient * x * 2
def f(x, w, scale=1.0):
    calls.append(1)
    return (Wrong.apply(x, w) * scale).sin()
calls = []
model = torch.nn.Linear(2, 1)
def loss(x):
    return model(x).square().mean()
x = torch.tensor([1.0, 2.0], requires_grad=True)
batch = {'w': torch.tensor([0.5, -0.5], requires_grad=True)}
parts = []
def part(value):
    parts.append(1)
    return value
"""


@pytest.fixture(scope="module", autouse=True)
def prepared(module_kernel: Kernel) -> None:
    module_kernel.ok(PREPARE)


def plain(kernel: Kernel, expression: str) -> Any:
    return ast.literal_eval(kernel.value(expression))


def test_a_call_is_taken_apart_and_shown_once(kernel: Kernel) -> None:
    kernel.ok("parts.clear(); calls.clear()")
    reply = kernel.ok("m = %gradcheck f(part(x), batch['w'], scale=2.0) -o kept")
    assert len(reply.texts("display")) == 1
    assert {"text/plain", "text/html"} <= set(reply.data[0])
    text = reply.text("display")
    assert "The gradient of `f` with respect to `batch['w']` is wrong" in text
    assert "`Wrong` (In[" in text
    assert plain(kernel, "m is kept")
    assert plain(kernel, "parts") == [1]
    assert plain(kernel, "calls") == []  # a copy of the function ran, with its own variables
    assert plain(kernel, "[one.name for one in m.inputs]") == ["part(x)", "batch['w']"]
    assert plain(kernel, "(m.functions[0].where.cell is not None, x.grad)") == (True, None)
    assert kernel.ok("%gradcheck f(x, batch['w']) ;").shown == []


def test_modules_of_the_notebook_and_starred_arguments(kernel: Kernel) -> None:
    kernel.ok("m = %gradcheck loss(*[x]) --top 3 ;")
    names = plain(kernel, "[one.name for one in m.inputs]")
    assert names == ["[x][0]", "model.weight", "model.bias"]
    assert plain(kernel, "m.ok") is True
    kernel.ok("m = %gradcheck model(x) --eps 1e-5 ;")
    assert plain(kernel, "(m.name, m.eps)") == ("model", 1e-5)


@pytest.mark.parametrize(
    ("expression", "inputs"),
    [
        ("x.sin()", ["x"]),
        ("(x * batch['w']).tanh().sum()", ["x", "batch['w']"]),
        ("x * 2 + batch['w'] ** 2", ["x", "batch['w']"]),
        ("model(x).square().mean()", ["x", "model.weight", "model.bias"]),
        ("[one * x for one in (1.0, 2.0)][1]", ["x"]),
        ("sum(value.exp().sum() for value in batch.values())", ["batch['w']"]),
        ("torch.stack([x, batch['w']])[0]", ["x", "batch['w']"]),
    ],
)
def test_any_expression_is_a_function_of_its_variables(
    kernel: Kernel, expression: str, inputs: list[str]
) -> None:
    kernel.ok(f"m = %gradcheck {expression} ;")
    assert plain(kernel, "[one.name for one in m.inputs]") == inputs
    assert plain(kernel, "(m.ok, x.grad)") == (True, None)


def test_a_wrong_gradient_inside_an_expression(kernel: Kernel) -> None:
    reply = kernel.ok("%gradcheck f(x, batch['w']).sum()")
    said = reply.text("display")
    assert "The gradient of `f(x, batch['w']).sum()` with respect to `batch['w']` is wrong" in said


def test_what_float64_hides(kernel: Kernel) -> None:
    reply = kernel.ok("%gradcheck torch.exp(x * 100)")
    assert "At float32 it is not finite" in reply.text("display")


def test_an_error_of_the_function_is_the_users_own(kernel: Kernel) -> None:
    kernel.ok("def bad(x):\n    return x @ torch.ones(3)")
    reply = kernel.run("%gradcheck bad(x)")
    assert reply.error.startswith("RuntimeError: ")
    assert "return x @ torch.ones(3)" in reply.text("error")
    assert "nbinspect/" not in reply.text("error")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("%gradcheck", "%gradcheck: takes a call or a formula, e.g. %gradcheck f(x, w)"),
        ("%gradcheck x", "%gradcheck: takes a call or a formula, e.g. %gradcheck f(x, w)"),
        ("%gradcheck f(x, ww)", "%gradcheck: there is no ww"),
        ("%gradcheck f(x,", "%gradcheck: f(x, is no expression"),
        ("%gradcheck f(x) --eps 0", "%gradcheck: --eps takes a number above 0, not 0"),
        ("%gradcheck len([1])", "%gradcheck: len has no floating-point argument or parameter"),
    ],
)
def test_usage_errors(kernel: Kernel, line: str, error: str) -> None:
    reply = kernel.run(line)
    assert reply.status == "error"
    assert reply.error.startswith(f"UsageError: {error}")
    assert len(reply.text("stderr").strip().splitlines()) == 1


def test_help_and_tab(kernel: Kernel) -> None:
    assert "Are the gradients of this function right" in kernel.ok("%gradcheck?").help
    assert "--rtol" in kernel.complete("%gradcheck f(x) --r")
