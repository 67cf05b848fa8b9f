"""`%%nanwatch` as its user meets it."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from kerneldriver import Kernel

PREPARE = """
import torch, nbinspect, random
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
def fresh():
    global model, opt, weights
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = [p.detach().clone() for p in model.parameters()]
def intact():
    return all(torch.equal(a, b) for a, b in zip(weights, model.parameters()))
fresh()
x, mask = torch.randn(4, 3), torch.zeros(4, 1)
history = []
"""
LOOP = """
for i in range(3):
    keep = torch.full((4, 1), float(i < 1))
    loss = (model(x) * keep).sum() / keep.sum()
    opt.zero_grad()
    history.append(i)
    loss.backward()
    opt.step()
    history.append('stepped')
"""
FUNCTION = """
def train(n):
    for i in range(n):
        keep = torch.full((4, 1), float(i < 1))
        loss = (model(x) * keep).sum() / keep.sum()
        opt.zero_grad()
        history.append(i)
        print('step', i)
        loss.backward()
        opt.step()
"""


@pytest.fixture(scope="module", autouse=True)
def prepared(module_kernel: Kernel) -> None:
    module_kernel.ok(PREPARE)
    module_kernel.ok(FUNCTION)


@pytest.fixture(autouse=True)
def anew(kernel: Kernel) -> None:
    kernel.ok("fresh(); history.clear()")


def plain(kernel: Kernel, expression: str) -> Any:
    return ast.literal_eval(kernel.value(expression))


def first(kernel: Kernel) -> Any:
    return plain(
        kernel,
        "(lambda f: (f.op, f.phase, f.step, f.reaches, f.where.lineno, f.where.text))"
        "(m.findings[0])",
    )


@pytest.mark.parametrize("options", ["", " --light"])
def test_stops_before_the_write_with_the_users_line(kernel: Kernel, options: str) -> None:
    reply = kernel.run(f"%%nanwatch -o m{options}{LOOP}")
    assert reply.status == "error"
    assert reply.error.startswith("NonFiniteError: Step 1: `div` made NaN in In[")
    assert "keep.sum().clamp(min=1)" in reply.error
    traceback = reply.text("error")
    assert "loss.backward()" in traceback
    assert "nbinspect/" not in traceback
    assert "site-packages" not in traceback
    text = "loss = (model(x) * keep).sum() / keep.sum()"
    assert first(kernel) == ("aten.div", "forward", 1, ("loss", "grad"), 4, text)
    assert plain(kernel, "history") == [0, "stepped", 1]
    kernel.ok("a = [p.detach().clone() for p in model.parameters()]")
    kernel.ok("fresh(); history.clear()")
    kernel.ok(LOOP.replace("range(3)", "range(1)"))
    assert plain(kernel, "all(map(torch.equal, a, model.parameters()))")
    assert plain(kernel, "m.stopped")
    assert len(reply.texts("display")) == 1
    assert {"text/plain", "text/html"} <= set(reply.data[0])
    assert plain(kernel, "m.replayed") is bool(options)


@pytest.mark.parametrize("options", ["", " --light"])
def test_runs_on_if_asked_to(kernel: Kernel, options: str) -> None:
    reply = kernel.ok(f"%%nanwatch -o m --no-stop{options}{LOOP}'value'")
    assert "'value'" in reply.texts("result")
    assert first(kernel)[:4] == ("aten.div", "forward", 1, ("loss", "grad", "parameter"))
    assert plain(kernel, "history") == [0, "stepped", 1, "stepped", 2, "stepped"]


@pytest.mark.parametrize("options", ["", " --light"])
def test_found_at_the_end_of_a_cell(kernel: Kernel, options: str) -> None:
    """Nothing ran backward after the parameter was spoilt by hand."""
    cell = "model(x).sum().backward()\nwith torch.no_grad():\n    model.weight.div_(0)\n"
    reply = kernel.run(f"%%nanwatch -o m{options}\n{cell}")
    assert reply.status == "error"
    assert reply.error.startswith("NonFiniteError: ")
    assert "nbinspect/" not in reply.text("error")
    assert plain(kernel, "m.findings[0].reaches") == ("parameter",)


def test_backward_without_an_optimizer(kernel: Kernel) -> None:
    reply = kernel.run(
        "%%nanwatch -o m\nw = nn.Parameter(torch.zeros(2))\nw.sqrt().sum().backward()"
    )
    assert reply.error.startswith("NonFiniteError: ")
    assert first(kernel)[:4] == ("aten.div", "backward", 0, ("grad",))
    assert "w.sqrt().sum().backward()" in reply.text("error")


@pytest.mark.parametrize("options", ["", " --light"])
def test_healthy_cell_is_as_plain(kernel: Kernel, options: str) -> None:
    reply = kernel.ok(
        f"%%nanwatch -o m{options}\nloss = model(x).mean()\nloss.backward()\nopt.step()\n7"
    )
    assert reply.texts("result") == ["7"]
    assert "No NaN or Inf" in reply.text("display")
    assert plain(kernel, "(m.healthy, m.n_steps, m.n_backwards, m.mode)") == (
        True, 1, 1, "light" if options else "exact",
    )  # fmt: skip


def test_fault_inside_the_optimizer_names_what_was_written(kernel: Kernel) -> None:
    kernel.ok("big = torch.optim.SGD(model.parameters(), lr=3e38)")
    reply = kernel.run("%%nanwatch -o m\n(model(x) * 1e3).sum().backward()\nbig.step()")
    assert reply.error.startswith("NonFiniteError: ")
    assert first(kernel)[1] == "optimizer"
    assert "model.weight" in plain(kernel, "m.findings[0].written")
    assert "big.step()" in reply.text("error")


@pytest.mark.parametrize("options", ["", " --light"])
def test_cell_that_fails_awaits_or_is_interrupted(kernel: Kernel, options: str) -> None:
    reply = kernel.run(f"%%nanwatch -o m{options}\nmodel(x)\n1 / 0")
    assert reply.error == "ZeroDivisionError: division by zero"
    assert "nbinspect" not in reply.text("error")
    assert plain(kernel, "(m.error, m.healthy)") == ("ZeroDivisionError", True)
    cell = "import asyncio\nawait asyncio.sleep(0)\nmodel(x).sum().backward()\nawait asyncio.sleep(0)\n5"
    assert kernel.ok(f"%%nanwatch -o m{options}\n{cell}").texts("result") == ["5"]
    assert plain(kernel, "m.n_backwards") == 1
    body = "print('go', flush=True)\nwhile True: model(x).sum().backward()"
    reply = kernel.interrupted(f"%%nanwatch -o m{options}\n{body}")
    assert reply.error == "KeyboardInterrupt: "
    assert plain(kernel, "m.error") == "KeyboardInterrupt"
    assert plain(kernel, "torch.is_grad_enabled()")


@pytest.mark.parametrize(
    "head",
    ["%%time\n%%nanwatch -o m", "%%memwatch\n%%nanwatch -o m", "%%nanwatch -o m\n%%memwatch"],
)  # fmt: skip
def test_among_other_magics(kernel: Kernel, head: str) -> None:
    reply = kernel.run(f"{head}{LOOP}")
    assert reply.status == "error"
    assert reply.error.startswith("NonFiniteError: ")
    assert first(kernel)[:3] == ("aten.div", "forward", 1)
    assert "keep.sum()" in first(kernel)[5]
    assert "nbinspect/" not in reply.text("error")


# Light mode's replay.


def test_replay_of_a_function_prints_and_appends_once(kernel: Kernel) -> None:
    reply = kernel.run("%%nanwatch -o m --light\ntrain(4)")
    assert reply.error.startswith("NonFiniteError: ")
    assert reply.text("stdout").splitlines()[:2] == ["step 0", "step 1"]
    assert reply.text("stdout").count("step") == 2
    assert plain(kernel, "history") == [0, 1]
    assert first(kernel)[:3] == ("aten.div", "forward", 1)
    assert "It gave the same loss, bit by bit." in plain(kernel, "m.replay")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("keep, n = mask, next(batches)", "next(batches)"),
        ("open('/tmp/nanwatch.txt', 'a').close(); keep = mask", "open("),
        ("keep = mask if not hasattr(shell, 'x') or input() else mask", "input()"),
        ("keep = advanced()", "advances an iterator"),
        ("keep = written()", "writes the file"),
    ],
)
def test_replay_is_refused_where_it_would_repeat_something(kernel: Kernel, line, why) -> None:
    kernel.ok("shell, batches = None, iter(range(9))")
    kernel.ok("def advanced():\n    next(batches)\n    return mask")
    kernel.ok("def written():\n    open('/tmp/nanwatch.txt', 'w').close()\n    return mask")
    cell = f"for i in range(2):\n    {line}\n    loss = (model(x) * keep).sum() / keep.sum()\n    loss.backward()\n    opt.step()"
    reply = kernel.run(f"%%nanwatch -o m --light\n{cell}")
    assert reply.error.startswith("NonFiniteError: ")
    assert plain(kernel, "m.replayed") is False
    assert why in plain(kernel, "m.replay")
    assert plain(kernel, "m.findings[0].op") == "unknown"
    assert plain(kernel, "m.findings[0].reaches") == ("loss", "grad")
    assert why in plain(kernel, "m.findings[0].why")
    assert "--replay" in plain(kernel, "m.findings[0].mend")
    assert "%%nanwatch" in plain(kernel, "m.findings[0].mend")
    if "next" in line:
        assert plain(kernel, "next(batches)") == 1
        kernel.ok("batches = iter(range(9))")
        reply = kernel.run(f"%%nanwatch -o m --light --replay\n{cell}")
        assert first(kernel)[0] == "aten.div"
        assert plain(kernel, "next(batches)") == 2


STEPS = {
    "a while loop": "i = 0\nwhile i < 3:\n    i += 1\n    keep = torch.full((4, 1), float(i < 2))\n    loss = (model(x) * keep).sum() / keep.sum()\n    loss.backward()\n    opt.step()\n    opt.zero_grad()\n",
    "straight statements": "keep = mask\nloss = (model(x) * keep).sum() / keep.sum()\nloss.backward()\nopt.step()\n",
    "a function for each step": "def one(keep):\n    loss = (model(x) * keep).sum() / keep.sum()\n    loss.backward()\n    opt.step()\none(1 - mask)\none(mask)\n",
    "a method": "class Trainer:\n    n = 0\n    def step(self):\n        self.n += 1\n        keep = torch.full((4, 1), float(self.n < 2))\n        loss = (model(x) * keep).sum() / keep.sum()\n        loss.backward()\n        opt.step()\nt = Trainer()\nfor _ in range(3): t.step()\n",
}


@pytest.mark.parametrize("steps", STEPS)
def test_replay_of(kernel: Kernel, steps: str) -> None:
    reply = kernel.run(f"%%nanwatch -o m --light\n{STEPS[steps]}")
    assert reply.error.startswith("NonFiniteError: ")
    assert plain(kernel, "m.replayed")
    assert first(kernel)[0] == "aten.div"
    assert first(kernel)[5] == "loss = (model(x) * keep).sum() / keep.sum()"
    if steps == "a method":
        assert plain(kernel, "t.n") == 2


def test_hidden_state_is_told(kernel: Kernel) -> None:
    kernel.ok("state = torch.zeros(1)")
    cell = "for i in range(3):\n    state += 1\n    loss = (model(x).sum() + state).sum() * float('inf')\n    loss.backward()\n    opt.step()"
    kernel.run(f"%%nanwatch -o m --light --no-stop\n{cell}")
    assert plain(kernel, "m.findings[0].op") == "aten.mul"
    # An infinite loss is the same whatever went before: the bits tell only where they differ.
    kernel.ok("fresh(); state = torch.zeros(1)")
    cell = "for i in range(3):\n    state += 1\n    loss = model(x).sum() + state\n    loss = loss.sum() + (0 * loss).sqrt().sum()\n    loss.backward()\n    opt.step()"
    kernel.run(f"%%nanwatch -o m --light\n{cell}")
    assert first(kernel)[0] == "aten.div"
    assert "Its loss was another one" in plain(kernel, "m.replay")


# Options, errors and help.


def test_limit_on_gradients(kernel: Kernel) -> None:
    reply = kernel.run("%%nanwatch -o m --until grads=1e-3\nmodel(x).sum().backward()\nopt.step()")
    assert reply.error.startswith("NonFiniteError: ")
    assert "gradient norm" in reply.error
    assert plain(kernel, "intact()")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("--nope", "unknown option --nope"),
        ("--until loss=3", "--until"),
        ("--every 0", "--every takes a whole number from 1 up, not 0"),
        ("--max-findings x", "--max-findings takes a whole number from 1 up, not x"),
        ("what", "unexpected argument what"),
    ],
)
def test_usage_errors(kernel: Kernel, options: str, error: str) -> None:
    reply = kernel.run(f"%%nanwatch {options}\nran = 1")
    assert reply.status == "error"
    assert reply.error.startswith(f"UsageError: %%nanwatch: {error}")
    assert len(reply.text("stderr").strip().splitlines()) == 1
    assert plain(kernel, "'ran' in globals()") is False


def test_help_and_tab(kernel: Kernel) -> None:
    assert "Which operation made the first NaN or Inf" in kernel.ok("%%nanwatch?").help
    assert {"--light", "--no-stop", "--replay"} <= set(kernel.complete("%%nanwatch --"))
