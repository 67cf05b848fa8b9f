"""What only IPython still holds is named, and the line that is given frees it."""

from __future__ import annotations

import ast

import pytest
from kerneldriver import Kernel

PREPARE = """
import gc, sys, weakref, torch, nbinspect
gc.disable()  # what is freed is freed by the mend alone
def big():
    global ref
    tensor = torch.ones(100, 1000)
    ref = weakref.ref(tensor)
    return tensor
def graph():
    global ref
    x = torch.ones(100, 1000, requires_grad=True)
    ref = weakref.ref(x)
    return x.exp().sum()
def failing(*args):
    tensor = big()
    raise ValueError(1)
class Holder:
    pass
"""
LATER = ["'a'", "'b'", "'c'", "'d'"]
OUTPUTS = {
    "just now": ["big()"],
    "one value ago": ["big()", "'a'"],
    "long ago": ["big()", *LATER],
    "once a variable": ["t = big()\nt", "del t"],
    "in a list": ["[1, big()]"],
    "as an attribute": ["h = Holder(); h.t = big(); h", "del h", *LATER],
    "in a graph": [
        "x = torch.ones(100, 1000, requires_grad=True); y = x.exp(); ref = weakref.ref(x); y.sum()",
        "del x, y",
        *LATER,
    ],
    "twice": ["t = big()\nt", "t", "del t", *LATER],
}
ERRORS = {
    "plain": ["failing()"],
    "an argument": ["failing.__wrapped__ = lambda t: 1 / 0\nfailing.__wrapped__(big())"],
    "chained": ["try:\n    failing()\nexcept ValueError as e:\n    raise KeyError(2) from e"],
    "in a handler": ["try:\n    failing()\nexcept ValueError as e:\n    {}[1]"],
    "in a group": [
        (
            "try:\n    failing()\nexcept ValueError as e:\n    group = ExceptionGroup('g', [e])\n"
            "try:\n    raise group\nfinally:\n    del group"
        )
    ],
    "in the message": ["error = ValueError(big())\ntry:\n    raise error\nfinally:\n    del error"],
    "in a graph": ["loss = graph()\ntry:\n    (lambda loss: 1 / 0)(loss)\nfinally:\n    del loss"],
    "kept": ["try:\n    failing()\nexcept ValueError as e:\n    kept = e"],
}


def wasted(kernel: Kernel) -> list[tuple[str, str, int]]:
    kernel.ok(
        "snapshot = nbinspect.gpumem()\nwaste = [(w.what, w.mend, w.size_bytes) for w in snapshot.waste]\ndel snapshot"
    )
    found: list[tuple[str, str, int]] = ast.literal_eval(kernel.value("waste"))
    return found


def mends_free_it(kernel: Kernel, cells: list[str], words: str) -> None:
    kernel.ok(PREPARE)
    for cell in cells:
        kernel.run(cell)
    assert kernel.value("ref() is not None") == "True"
    found = [one for one in wasted(kernel) if words in one[0]]
    assert found
    assert all(size >= 400_000 for _, _, size in found)
    for _, mend, _ in found:
        assert not kernel.ok(mend).shown
    assert kernel.value("ref()") == "None"
    assert not [one for one in wasted(kernel) if words in one[0]]


@pytest.mark.parametrize("cells", OUTPUTS.values(), ids=OUTPUTS.keys())
def test_displayed_values(kernel: Kernel, cells: list[str]) -> None:
    mends_free_it(kernel, cells, "only the displayed value `Out[")


@pytest.mark.parametrize("cells", ERRORS.values(), ids=ERRORS.keys())
def test_last_error(kernel: Kernel, cells: list[str]) -> None:
    mends_free_it(kernel, cells, "error")
    kernel.ok("kept = None\ngc.collect()")
    kernel.run("1 / 0")


def test_values_that_a_variable_holds_are_no_waste(kernel: Kernel) -> None:
    kernel.ok(PREPARE)
    kernel.ok("t = big()\nt")
    kernel.ok("try:\n    failing()\nexcept ValueError:\n    pass")
    assert wasted(kernel) == []
    owners = kernel.value("[(h.kind, h.owner) for h in nbinspect.gpumem().devices[-1].holdings]")
    assert "('VARIABLE', 't')" in owners
    kernel.ok("del t, ref\nget_ipython().displayhook.flush()")
