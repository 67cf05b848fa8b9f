"""The fixture that guards every test catches each kind of thing a test can leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

HEAD = """
import builtins, gc, os, random, signal, sys, threading
import hypothesis, matplotlib, numpy, pytest, torch
from IPython.core.interactiveshell import InteractiveShell
from matplotlib import pyplot
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

class Function(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

def nothing(*args, **kwargs):
    return None

kept = []
for_ever = threading.Event()

@pytest.fixture(scope="module")
def shell():
    return InteractiveShell.instance()

@pytest.fixture(scope="module")
def weights():
    return torch.zeros(3)

@pytest.fixture(scope="module")
def biases():
    return torch.zeros(6)

@pytest.fixture
def inputs():
    return torch.zeros(4)
"""

# What a test does wrong -> (its body, what the fixture must name).
WRONG = {
    "dispatch_mode": ("Dispatch().__enter__()", "dispatch modes"),
    "function_mode": ("Function().__enter__()", "function modes"),
    "saved_tensor_hooks": (
        "torch.autograd.graph.saved_tensors_hooks(nothing, nothing).__enter__()",
        "saved tensor hooks",
    ),
    "module_hook": (
        "torch.nn.modules.module.register_module_forward_hook(nothing)",
        "torch.nn.modules.module._global_forward_hooks",
    ),
    "module_backward_hook": (
        "torch.nn.modules.module.register_module_full_backward_hook(nothing)",
        "torch.nn.modules.module._global_backward_hooks",
    ),
    "optimizer_hook": (
        "register_optimizer_step_post_hook(nothing)",
        "torch.optim.optimizer._global_optimizer_post_hooks",
    ),
    "grad_mode": ("torch.set_grad_enabled(False)", "grad mode"),
    "anomaly": ("torch.autograd.set_detect_anomaly(True)", "anomaly mode"),
    "deterministic": ("torch.use_deterministic_algorithms(True)", "deterministic algorithms"),
    "default_dtype": ("torch.set_default_dtype(torch.float64)", "default dtype"),
    "patched_tensor": ("torch.Tensor.backward = nothing", "Tensor.backward"),
    "patched_module": ("torch.nn.Module.__call__ = nothing", "Module.__call__"),
    "added_to_module": ("torch.nn.Module.extra = nothing", "Module.extra was not there before"),
    "patched_optimizer": ("torch.optim.Optimizer.zero_grad = nothing", "Optimizer.zero_grad"),
    "patched_function": ("torch.autograd.grad = nothing", "torch.autograd.grad"),
    "patched_builtin": ("builtins.oct = nothing", "builtins.oct"),
    "shell_event": ("shell.events.register('pre_run_cell', nothing)", "shell event pre_run_cell"),
    "input_transformer": (
        "shell.input_transformers_cleanup.append(nothing)",
        "shell.input_transformers_cleanup",
    ),
    "ast_transformer": ("shell.ast_transformers.append(nothing)", "shell.ast_transformers"),
    "magic": ("shell.register_magic_function(nothing, 'cell', 'extra')", "cell magics"),
    "matcher": ("shell.Completer.custom_matchers.append(nothing)", "completer matchers"),
    "thread": ("threading.Thread(target=for_ever.wait, daemon=True).start()", "thread Thread-"),
    "gc_off": ("gc.disable()", "gc enabled"),
    "gc_callback": ("gc.callbacks.append(nothing)", "gc callbacks"),
    "trace": ("sys.settrace(nothing)", "sys trace"),
    "profile": ("sys.setprofile(nothing)", "sys profile"),
    "excepthook": ("sys.excepthook = nothing", "sys.excepthook"),
    "signal_handler": ("signal.signal(signal.SIGINT, nothing)", "handler of SIGINT"),
    "environment": ("os.environ['LEFT'] = '1'", "environment changed: LEFT"),
    "rc_params": (
        "matplotlib.rcParams['lines.linewidth'] = 99",
        "matplotlib rcParams changed: lines.linewidth",
    ),
    "figure": ("pyplot.figure()", "matplotlib figures"),
    "tensor": ("kept.append(torch.zeros(2, 5))", "a live Tensor of shape (2, 5)"),
    "graph": ("kept.append(torch.zeros(7, requires_grad=True) * 2)", "a live Tensor of shape (7,)"),
    "no_reason": ("kept.append(torch.zeros(2))", "keeps_tensors needs a reason"),
}

# What a test may do: it tidies up, or what it leaves is not its own.
RIGHT = {
    "tidy": "with Dispatch(), torch.no_grad():\n        torch.zeros(3).sum()",
    "garbage_cycle": "loop = [torch.zeros(3)]\n    loop.append(loop)",
    "own_fixture": "assert inputs.sum() == 0",
    "module_fixture": "assert weights.sum() == 0",
    "property": "hypothesis.given(hypothesis.strategies.integers())(lambda n: None)()",
    "random_numbers": "torch.manual_seed(1), random.seed(1), numpy.random.seed(1)",
    "raises": "with pytest.raises(RuntimeError) as info:\n        torch.zeros(3) @ torch.zeros(4)",
    "ending_thread": "threading.Timer(0.2, nothing).start()",
    "excused": "kept.append(torch.zeros(3))",
}
MARKS = {
    "no_reason": "@pytest.mark.keeps_tensors()\n",
    "excused": "@pytest.mark.keeps_tensors(reason='the test of the mark itself')\n",
}
LATE = "def test_early(): pass\ndef test_late_fixture(biases):\n    assert biases.sum() == 0\n"
FAILS = "def test_failing():\n    t = torch.zeros(9)\n    assert t.sum() == 1\n"


def _source() -> str:
    bodies = RIGHT | {name: body for name, (body, _) in WRONG.items()}
    tests = [
        f"{MARKS.get(name, '')}def test_{name}(shell, weights, inputs):\n    {body}\n"
        for name, body in bodies.items()
    ]
    return "\n".join([HEAD, *tests, LATE, FAILS])


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory) -> dict[str, str]:
    """Run the tests above in a process of their own; give the error of each, "" for none."""
    folder = tmp_path_factory.mktemp("leftovers")
    (folder / "test_sample.py").write_text(_source())
    (folder / "conftest.py").write_text('pytest_plugins = ["leftovers"]\n')
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = keeps_tensors\n")
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-q", "--junitxml=report.xml", str(folder)]
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    found = {}
    for case in ET.parse(folder / "report.xml").iter("testcase"):
        name = case.get("name").removeprefix("test_")
        found[name] = found.get(name, "") + (case.findtext("error") or "")
    return found


def test_every_sample_ran(verdicts):
    assert verdicts.keys() == {*WRONG, *RIGHT, "early", "late_fixture", "failing"}


@pytest.mark.parametrize("name", WRONG)
def test_catches(verdicts, name):
    assert WRONG[name][1] in verdicts[name]


@pytest.mark.parametrize("name", RIGHT)
def test_lets_pass(verdicts, name):
    assert verdicts[name] == ""


def test_blames_no_test_for_what_an_earlier_one_left(verdicts):
    assert "Module.extra" not in verdicts["tensor"]


def test_a_fixture_of_the_module_that_comes_late_is_not_its_first_tests(verdicts):
    assert verdicts["late_fixture"] == ""


def test_a_failed_test_is_not_blamed_for_the_tensors_of_its_traceback(verdicts):
    assert verdicts["failing"] == ""
