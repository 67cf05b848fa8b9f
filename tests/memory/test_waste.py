"""Each kind of waste: planted, named, and freed by the line that is given; and its healthy twin."""

from __future__ import annotations

import gc
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import nbinspect
from nbinspect.memory.records import MemorySnapshot, Waste


@dataclass(frozen=True)
class Case:
    """A cell, a part of the sentence about it, and the bytes that its mend gives back."""

    code: str
    words: str
    freed_bytes: int


TRAIN = """
import torch
from types import SimpleNamespace
model = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Linear(200, 200))
model(torch.ones(1, 200)).sum().backward()
"""
LOSS = """
import torch
def loss():
    x = torch.ones(100, 100, requires_grad=True)
    return x.exp().sum()
"""
FAIL = """
import torch
def caught():
    try:
        fail()
    except ValueError as error:
        return error
def fail():
    act = torch.ones(100, 1000)
    raise ValueError
"""
WEIGHTS = 4 * 200 * 201

CASES = {
    "a row of a table": Case(
        "import torch\nrow = torch.ones(1000, 1000)[0]",
        "`row` uses 0.1 % of the 3.81 MiB it keeps",
        999 * 4000,
    ),
    "a row in a dictionary": Case(
        "import torch\ncache = {'row': torch.ones(1000, 1000)[0]}",
        "`cache['row']` uses 0.1 %",
        999 * 4000,
    ),
    "a parameter that is a view": Case(
        "import torch\nmodel = torch.nn.Linear(1, 1)\n"
        "model.weight = torch.nn.Parameter(torch.ones(1000, 1000)[0])",
        "`model.weight` uses 0.1 %",
        999 * 4000,
    ),
    "losses": Case(
        f"{LOSS}\nlosses = [loss() for _ in range(4)]", "`losses[0..3]` keep the graphs", 320_000
    ),
    "losses by number": Case(
        f"{LOSS}\nlosses = {{n: loss() for n in range(4)}}", "`losses[0..3]` keep", 320_000
    ),
    "the last losses": Case(
        f"{LOSS}\nimport collections\n"
        "losses = collections.deque([loss() for _ in range(4)], maxlen=4)",
        "`losses[0..3]` keep",
        320_000,
    ),
    "losses of a trainer": Case(
        f"{LOSS}\nclass Trainer:\n    pass\ntrainer = Trainer()\n"
        "trainer.losses = [loss() for _ in range(4)]",
        "`trainer.losses[0..3]` keep",
        320_000,
    ),
    "one frozen weight": Case(
        f"{TRAIN}\nweight = model[0].weight.requires_grad_(False)\n"
        "box = SimpleNamespace(weight=torch.ones(200, 200, requires_grad=True))\n"
        "box.weight.sum().backward()\nbox.weight.requires_grad_(False)\n"
        "model[0].weight.grad = None",
        "`box.weight.grad`: gradients of parameters that are frozen",
        160_000,
    ),
    "a frozen model": Case(
        f"{TRAIN}\nmodel.requires_grad_(False)", "gradients of parameters that are", 2 * WEIGHTS
    ),
    "a frozen part of a trainer's model": Case(
        f"{TRAIN}\ntrainer = SimpleNamespace(model=model)\ndel model\n"
        "trainer.model[0].requires_grad_(False)\n"
        "trainer.model[1].weight.requires_grad_(False)",
        "and 2 more: gradients of parameters",
        WEIGHTS + 160_000,
    ),
    "a cycle": Case(
        "import gc, torch\ngc.disable()\nring = [torch.ones(100, 1000)]\nring.append(ring)\ndel ring",
        "waits for Python's collector",
        400_000,
    ),
    "an optimizer without its model": Case(
        "import torch\noptimizer = torch.optim.SGD(torch.nn.Linear(200, 200).parameters(), lr=0.1)",
        "`optimizer` lists the parameters of a model that nothing else holds",
        WEIGHTS,
    ),
    "an error that was kept": Case(
        f"{FAIL}\nkept = caught()", "the traceback of the error in `kept`", 400_000
    ),
    "an error in a list": Case(
        f"{FAIL}\nerrors = [caught()]", "the traceback of the error in `errors[0]`", 400_000
    ),
    "an error in a group": Case(
        f"{FAIL}\ngroup = ExceptionGroup('g', [caught()])", "in `group.exceptions[0]`", 400_000
    ),
    "the cause of an error": Case(
        f"{FAIL}\nkept = KeyError()\nkept.__cause__ = caught()", "in `kept.__cause__`", 400_000
    ),
    "the last error": Case(
        f"{FAIL}\nimport sys\ntry:\n    fail()\nexcept ValueError as error:\n"
        "    sys.last_value, sys.last_traceback = error, error.__traceback__",
        "the last error's traceback",
        400_000,
    ),
}
HEALTHY = {
    "a copied row": "import torch\nrow = torch.ones(1000, 1000)[0].clone()",
    "a row of a table that is there": "import torch\ntable = torch.ones(1000, 1000)\nrow = table[0]",
    "half a table": "import torch\nhalf = torch.ones(1000, 1000)[:500]",
    "sparse values": "import torch\ncoo = torch.ones(300, 300).to_sparse()\nfew = coo._values()[:3]",
    "losses as numbers": f"{LOSS}\nlosses = [loss().item() for _ in range(4)]",
    "detached losses": f"{LOSS}\nlosses = [loss().detach() for _ in range(4)]",
    "one loss": f"{LOSS}\ntotal = loss()",
    "a model in training": f"{TRAIN}\noptimizer = torch.optim.Adam(model.parameters())\noptimizer.step()",
    "a frozen model without gradients": f"{TRAIN}\nmodel.requires_grad_(False).zero_grad()",
    "an error as text": f"{FAIL}\nkept = repr(caught())",
    "an error whose tensor is used": f"{FAIL}\nkept = caught()\n"
    "act = kept.__traceback__.tb_next.tb_frame.f_locals['act']",
    "a small cycle": "import gc, torch\ngc.disable()\nr = [torch.ones(10)]\nr.append(r)\ndel r",
}


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """The global names of the running program; what a test adds is taken away again."""
    names = vars(sys.modules["__main__"])
    before = set(names)
    yield names
    for name in set(names) - before:
        del names[name]
    for name in ("last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.enable()
    gc.collect()


def look(names: dict[str, Any], code: str) -> MemorySnapshot:
    exec(compile(textwrap.dedent(code), "cell.py", "exec"), names)
    return nbinspect.gpumem(device="cpu")


def tracked(snapshot: MemorySnapshot) -> int:
    return snapshot.device("cpu").tracked_bytes


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_mend_frees_what_it_says(names: dict[str, Any], case: Case) -> None:
    before = look(names, case.code)
    (waste,) = (one for one in before.waste if case.words in one.what)
    assert waste.size_bytes == case.freed_bytes
    after = look(names, waste.mend)
    assert tracked(before) - tracked(after) == case.freed_bytes
    assert not [one for one in after.waste if case.words in one.what]


@pytest.mark.parametrize("code", HEALTHY.values(), ids=HEALTHY.keys())
def test_healthy_code_is_not_blamed(names: dict[str, Any], code: str) -> None:
    assert look(names, code).waste == ()


def test_what_no_line_can_free_has_none(names: dict[str, Any]) -> None:
    code = """
        import torch
        pair = (torch.ones(1000, 1000)[0], 1)
        keys = {torch.ones(1000, 1000)[0]: 1}
    """
    found = look(names, code).waste
    assert [one.mend for one in found] == ["", ""]
    assert isinstance(found[0], Waste)


def test_a_cycle_that_something_else_holds_is_not_called_garbage(names: dict[str, Any]) -> None:
    code = """
        import gc, torch
        gc.disable()
        ring = [torch.ones(100, 1000)]
        capsule = torch.utils.dlpack.to_dlpack(ring[0])
        ring.append(ring)
        del ring
    """
    assert look(names, code).waste == ()


HOOK = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(100, 1000))
def remember(module):
    seen = []
    return module.register_forward_hook(lambda _module, _inputs, output: seen.append(output.detach()))
handle = remember(model[0])
with torch.no_grad():
    model(torch.ones(100, 100))
"""


def test_what_only_a_hook_keeps_is_freed_by_removing_it(names: dict[str, Any]) -> None:
    before = look(names, HOOK)
    (waste,) = before.waste
    assert waste.what.startswith("only the `hook <lambda> on model.0` keeps this")
    assert waste.size_bytes == 400_000
    after = look(names, "handle.remove(); del handle")
    assert tracked(before) - tracked(after) == 400_000
    assert after.waste == ()


def test_what_a_hook_and_a_name_keep_is_no_waste(names: dict[str, Any]) -> None:
    shared = HOOK.replace("seen = []", "global seen; seen = []")
    assert look(names, shared).waste == ()
