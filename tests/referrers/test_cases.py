"""Everything that is planted is named, counted and let go by the line that the answer gives."""

from __future__ import annotations

import pytest
from asking import Answer, Asker
from kept_alive import CASES, Case, H


def in_order(parts: tuple[str, ...], text: str) -> bool:
    at = 0
    for part in parts:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def told(found: Answer, n: int) -> str:
    """The verdict and one chain, as they are read."""
    chain = found.chains()[n] if found.chains() else ""
    root = found.report["chains"][n]["root"] if chain else ""
    return f"{found.report['verdict']} {root} {chain}"


def imports_the_compiler(case: Case) -> bool:
    """As a first optimizer does, which doubles the objects that each later answer looks through."""
    return "torch.optim" in case.code


@pytest.mark.parametrize(
    "case", sorted(CASES, key=imports_the_compiler), ids=lambda case: case.name
)
def test_planted(asker: Asker, case: Case) -> None:
    found = asker.ask(case.code, mends=case.mends)
    assert found.error == ""
    report = found.report
    chains = range(max(1, len(found.chains())))
    assert any(in_order(case.names, told(found, n)) for n in chains), found.text
    assert (found.edge() if case.edge else "") == case.edge
    assert report["complete"] == case.complete
    assert (report["n_explained"] == report["n_references"]) == case.complete
    assert report["collectable"] == case.collectable
    assert report["uncollectable"] == case.uncollectable
    assert found.counts[0] == found.counts[1]
    assert found.alive != case.frees, found.ran
    for part in ("nbinspect", "asking.py"):
        assert part not in found.text.replace("no collector", "")


def test_a_weak_reference_holds_nothing(asker: Asker) -> None:
    code = H + "more = [weakref.ref(h), weakref.WeakSet([h]), weakref.WeakValueDictionary({1: h})]"
    found = asker.ask(code, every=True)
    assert found.error == ""
    assert found.chains() == ["h"]
    assert not found.alive


def test_every_root_and_every_name(asker: Asker) -> None:
    code = H + "same = h\na = [h, {'k': h}]\nclass A: pass\no = A()\no.h = h\ndef f(x=h): pass"
    found = asker.ask(code, every=True)
    assert found.error == ""
    assert {"h", "same", "a[0]", "o.h", "f, default argument 'x'"} <= set(found.chains())
    assert found.report["complete"]


def test_a_chain_of_3000_links(asker: Asker) -> None:
    code = H + "deep = [h]\nfor _ in range(3000):\n    deep = [deep]\ndel h"
    found = asker.ask(code)
    assert found.error == ""
    assert found.chains()[0].startswith("deep[0][0]")
    assert found.edge() == "item"


def test_what_a_checkpoint_and_hooks_pack_is_not_unpacked(asker: Asker) -> None:
    found = asker.ask(
        """
import gc
from torch.utils.checkpoint import checkpoint
checkpoint(torch.exp, torch.ones(1, requires_grad=True), use_reentrant=False)
gc.collect()  # its first call imports the compiler, whose frames hold what it was called with
def block(x):
    facts.append("forward")
    return x.exp().exp()
x = torch.ones(10, requires_grad=True) * 1
probe = weakref.ref(x)
loss = checkpoint(block, x, use_reentrant=False).sum()
del x
"""
    )
    assert found.error == ""
    assert found.facts == ["forward"]
    assert found.chains()[0].startswith("loss -> grad_fn SumBackward0")
    found = asker.ask(
        """
def pack(t):
    return ["packed", t]
def unpack(packed):
    facts.append("unpacked")
    return packed[1]
x = torch.ones(10, requires_grad=True) * 1
probe = weakref.ref(x)
with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
    loss = x.exp().mul(x).sum()
del x
"""
    )
    assert found.error == ""
    assert found.facts == []
    assert found.chains()[0].startswith("loss -> grad_fn SumBackward0")


HOSTILE = """
class Hostile:
    def _called(self, *args):
        facts.append("called")
        raise RuntimeError("mine")
    __getattr__ = __repr__ = __eq__ = __hash__ = __len__ = __bool__ = __iter__ = _called
    __str__ = __sizeof__ = _called
    __class__ = property(_called)
    extra = property(_called)
"""


def test_objects_with_methods_of_their_own(asker: Asker) -> None:
    found = asker.ask(
        HOSTILE + "h = Hostile()\nholder = Hostile()\nholder.held = h\ndel h",
        "vars(holder)['held']",
    )
    assert found.error == ""
    assert found.facts == []
    assert found.chains() == ["holder.held"]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("3", "small number 3"),
        ("None", "None exists once"),
        ("True", "True exists once"),
        ("...", "Ellipsis exists once"),
        ("'name'", "interned"),
        ("''", "exists once"),
        ("'é'", "exists once"),
        ("spelled", ""),
        ("()", "exists once"),
        ("Mine", ""),
    ],
)
def test_values_without_an_identity_of_their_own(asker: Asker, expression: str, said: str) -> None:
    found = asker.ask("class Mine: pass\nspelled = ' '.join(['two', 'words'])", expression)
    assert found.error == ""
    assert said in found.report["verdict"], found.text
    assert (found.chains() == []) == bool(said)


def test_bytes_of_a_cycle_are_said(asker: Asker) -> None:
    code = next(case.code for case in CASES if case.name == "a cycle in Python")
    assert "600 B" in asker.ask(code).text


def test_a_way_up_that_ends_out_of_sight(asker: Asker) -> None:
    code = "import atexit, functools\natexit.register(functools.partial(len, h))\ndel h"
    found = asker.ask(H + code, mends=0)
    assert found.error == ""
    assert found.chains()[0].startswith("unnamed partial.args[0]")
    assert not found.report["complete"]
    assert "is not visible to gc" in found.report["verdict"]


def test_a_hook_on_a_tensor_that_is_gone_and_several_graphs(asker: Asker) -> None:
    code = """
losses = []
for n in range(3):
    y = torch.ones(2, requires_grad=True) * 2
    y.register_hook(lambda g, h=h if n == 1 else None: None)
    losses.append(y.sum())
del y, h
"""
    found = asker.ask(H + code)
    assert found.error == ""
    assert found.chains()[0].startswith("losses[")
    assert "hook <lambda> on a tensor behind" in found.chains()[0]
    assert not found.report["complete"]
    assert "torch does not tell which" in found.text
    assert found.ran == ["losses[:] = [one.detach() for one in losses]"]
    assert not found.alive


CLOSED_BY_C = {
    "a packed output": """
with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t, h=h: t):
    torch.ones(2, requires_grad=True).exp()
del h
""",
    "a hook of several leaves": """
a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
torch.autograd.graph.register_multi_grad_hook((a, b), lambda gs, h=h: None)
del a, b, h
""",
}


@pytest.mark.parametrize("code", CLOSED_BY_C.values(), ids=CLOSED_BY_C)
def test_a_cycle_that_python_sees_in_part(asker: Asker, code: str) -> None:
    found = asker.ask(H + code)
    assert found.error == ""
    assert found.report["uncollectable"], found.text
    assert not found.report["collectable"]
    assert found.report["complete"]
    assert found.alive


def test_looking_for_hooks_changes_none(asker: Asker) -> None:
    code = """
from torch.autograd.function import Function
x = torch.ones(2, requires_grad=True)
y = x * 2
y.grad_fn.register_hook(lambda a, b, h=h: facts.append(len(a)))
y.grad_fn.register_prehook(lambda a: facts.append("before"))
loss = y.exp().sum()
del y, h
"""
    found = asker.ask(
        H + code, "(probe(), facts.append('_register_hook' in vars(Function)))[0]", mends=0
    )
    assert found.error == ""
    assert found.facts == [False] * 3
    after = "import nbinspect; nbinspect.refchain(probe()); loss.backward(); facts.append(x.grad[0].item())"
    found = asker.ask(H + code + after, mends=0)
    assert found.facts[:2] == ["before", 2]
    assert found.facts[2] > 14


def test_an_object_that_holds_itself(asker: Asker) -> None:
    found = asker.ask(
        "class A: pass\na = A()\na.a = a\na.h = torch.ones(9)\nprobe = weakref.ref(a.h)\ndel a"
    )
    assert found.error == ""
    assert found.report["collectable"]
    assert not found.report["uncollectable"]
    assert "gc.collect() would free 36 B" in found.report["verdict"]


def test_what_is_not_enough_is_said(asker: Asker) -> None:
    found = asker.ask(H + "a = [h]\nb = {'k': h}\ndel h")
    assert found.ran == ["del a[0]"]
    assert "Other references hold it too: each needs its own." in found.report["mend"]
    assert found.alive


def test_a_figure_is_closed(asker: Asker) -> None:
    code = "import matplotlib; matplotlib.use('Agg')\nfrom matplotlib import pyplot\n"
    found = asker.ask(code + H + "pyplot.figure(7).h = h\ndel h, pyplot, matplotlib")
    assert found.error == ""
    assert found.ran == ["import matplotlib.pyplot; matplotlib.pyplot.close(7)"]
    assert not found.alive


def test_a_gradient_deep_in_a_model(asker: Asker) -> None:
    found = asker.ask(
        "net = nn.Sequential(nn.Linear(2, 2))\nnet(torch.ones(1, 2)).sum().backward()\n"
        "probe = weakref.ref(net[0].weight.grad)"
    )
    assert found.chains() == ["net.0.weight -> .grad"]
    assert found.ran == ["net[0].weight.grad = None"]
    assert not found.alive


def test_a_weight_asked_for_as_code_spells_it(asker: Asker) -> None:
    code = "net = nn.Sequential(nn.Linear(2, 2))\n"
    found = asker.ask(code, "net[0].weight", mends=0)
    assert "`net[0].weight` (2x2 float32, 16 B) is held by this name alone." in found.text
    code += "opt = torch.optim.SGD(net.parameters(), momentum=1)\n"
    found = asker.ask(code, "net[0].weight", mends=0)
    assert found.chains() == ["opt.param_groups[0]['params'][0]"]
    assert found.report["code"] == "del opt"


def test_code_in_the_advice_is_set_as_code() -> None:
    from nbinspect.blocks import Code

    code = "losses[:] = []"
    mend = f"Let them go with `{code}`, and keep `.item()`."
    assert _advised(mend, code) == ("Let them go, and keep ", Code(".item()"), ".")


def test_a_line_that_is_no_half_of_a_sentence_stays_in_it() -> None:
    from nbinspect.blocks import Code

    said = ("Take it off with its ", Code("handle.remove()"), ", or with ", Code("del hook"), ".")
    assert (
        _advised("Take it off with its `handle.remove()`, or with `del hook`.", "del hook") == said
    )
    said = ("Garbage: ", Code("gc.collect()"), " frees it.")
    assert _advised("Garbage: `gc.collect()` frees it.", "gc.collect()") == said


def _advised(mend: str, code: str) -> tuple[object, ...]:
    from nbinspect import ReferenceReport
    from nbinspect.blocks import Advice

    whole = ReferenceReport("h", "", (), 1, 1, True, "", False, False, mend, code, None, (), 0.0)
    (advice,) = [block for block in whole.view() if isinstance(block, Advice)]
    assert advice.code == code
    return advice.spans
