"""`%refchain` as its user meets it: expressions, options, old outputs and errors, help and Tab."""

from __future__ import annotations

import pytest
from kerneldriver import Kernel

PREPARE = """
import gc, sys, weakref, torch, nbinspect
gc.disable()  # what is freed is freed by the mend alone
def forward():
    global probe
    activations = torch.randn(512, 512)
    probe = weakref.ref(activations)
    raise RuntimeError("out of memory (simulated)")
class Holder:
    pass
"""


@pytest.fixture(autouse=True)
def prepared(kernel: Kernel) -> None:
    kernel.ok(PREPARE)
    kernel.ok("h = torch.ones(64, 256); cache = {'k': [h], 'a b': h}")


def test_shown_once_and_returned(kernel: Kernel) -> None:
    reply = kernel.ok("m = %refchain h")
    sentence = "`h` (64x256 float32, 64.0 KiB) is alive because"
    shown = [(kind, text) for kind, text in reply.shown if sentence in text]
    assert [kind for kind, _ in shown] == ["display"]
    assert reply.texts("stderr") == reply.texts("result") == []
    assert kernel.value("type(m).__name__") == "'ReferenceReport'"
    assert kernel.ok("%refchain h").texts("result") == []
    assert kernel.ok("%refchain h;").shown == []
    assert kernel.ok("%refchain cache['k'][0] --all -o kept ;").shown == []
    assert kernel.value("kept.name") == repr("cache['k'][0]")
    # What was typed is no news.
    assert kernel.value("sorted(str(c) for c in kept.chains)") == repr(["cache['a b']", "h"])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("cache['a b']", "cache['a b']"),
        ("--all cache['a b']", "cache['a b']"),
        ("h if len('{h} $h') == 6 else None", "h if len('{h} $h') == 6 else None"),
        ("[h][-1]", "[h][-1]"),
        ("cache['k'][-1] -o kept2", "cache['k'][-1]"),
        ("(lambda n: cache['k'][n])(0)", "(lambda n: cache['k'][n])(0)"),
    ],
)
def test_any_expression_as_it_stands(kernel: Kernel, line: str, name: str) -> None:
    kernel.ok(f"m = %refchain {line}")
    assert kernel.value("m.name") == repr(name)
    assert kernel.value("m.description") == "'64x256 float32, 64.0 KiB'"


def test_evaluated_exactly_once(kernel: Kernel) -> None:
    kernel.ok("calls = []\ndef get():\n    calls.append(1)\n    return h")
    kernel.ok("%refchain get()")
    assert kernel.value("calls") == "[1]"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", "%refchain: name what to look at, e.g. %refchain h (see %refchain?)"),
        ("cahce", "%refchain: there is no cahce; did you mean cache? (see %refchain?)"),
        ("cache['x']", "%refchain: cache['x'] raises KeyError: 'x' (see %refchain?)"),
        ("--nope h", "%refchain: unknown option --nope (see %refchain?)"),
        ("h +", "%refchain: h + is no expression: "),
        ("h = 3", "%refchain: h = 3 is no expression: "),
        ("--type Nothing_", "%refchain: no live object is a Nothing_ (see %refchain?)"),
        ("h --type Tensor", "%refchain: takes an expression or --type, not both"),
        ("--types --growth", "%refchain: takes --types or --growth, not both (see %refchain?)"),
        ("--types many", "%refchain: --types takes a whole number from 1 up, not many"),
        ("--type Tensor --largest 0", "%refchain: --largest takes a whole number from 1 up, not 0"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(kernel: Kernel, line: str, error: str) -> None:
    reply = kernel.run(f"%refchain {line}\nprint('went on')")
    assert reply.status == "error"
    assert reply.error.startswith(f"UsageError: {error}")
    assert len(reply.text("stderr").strip().splitlines()) == 1
    assert reply.text("stdout") == ""


def test_an_expression_that_raises_keeps_nothing_alive(kernel: Kernel) -> None:
    assert kernel.run("%refchain forward()").error.startswith(
        "UsageError: %refchain: forward() raises RuntimeError: out of memory (simulated)"
    )
    assert kernel.value("probe()") == "None"


def test_no_reference_stays(kernel: Kernel) -> None:
    kernel.ok("t = torch.ones(10); probe = weakref.ref(t)")
    kernel.ok("%refchain t --all")
    kernel.ok("m = %refchain t")
    kernel.ok("%refchain t;")
    kernel.ok("%refchain --type Tensor --largest 2")
    kernel.ok("del t")
    assert kernel.value("probe()") == "None"


def test_a_displayed_value(kernel: Kernel) -> None:
    number = kernel.ok("torch.ones(50, 50)").count
    kernel.ok("probe = weakref.ref(_)")
    for text in ("'move'", "'_, __'", "'and ___ on'"):
        kernel.ok(text)
    for expression in ("probe()", f"Out[{number}]"):
        kernel.ok(f"m = %refchain {expression}")
        assert kernel.value("str(m.chains[0])") == repr(f"Out[{number}]")
    kernel.ok("exec(m.code); m = None")
    assert kernel.value("probe()") == "None"


def test_the_last_traceback(kernel: Kernel) -> None:
    assert kernel.run("forward()").status == "error"
    kernel.ok("m = %refchain probe()")
    answer = kernel.value("str(m.chains[0])")
    assert "sys.last_" in answer
    assert "frame forward() In[" in answer
    assert "variable activations" in answer
    for _ in range(4):
        kernel.ok("exec(m.code)")
        if kernel.value("probe()") == "None":
            break
        kernel.ok("m = %refchain probe()")
    assert kernel.value("probe()") == "None"
    kernel.run("1 / 0")


def test_the_largest_of_a_type(kernel: Kernel) -> None:
    kernel.ok("big = torch.ones(1000, 1000)")
    reply = kernel.ok("m = %refchain --type Tensor --largest 2")
    assert reply.text("display").startswith("The 2 largest of ")
    assert kernel.value("[len(m.reports), m.reports[0].description]") == (
        "[2, '1000x1000 float32, 3.81 MiB']"
    )
    assert kernel.value("str(m.reports[0].chains[0])") == "'big'"
    kernel.ok("del big")


def test_help_and_tab(kernel: Kernel) -> None:
    text = kernel.ok("%refchain?").help
    assert "usage: %refchain" in text
    assert "EXPR" in text
    assert "Examples:" in text
    assert kernel.complete("%refchain -") == [
        "--all",
        "--growth",
        "--largest",
        "--type",
        "--types",
        "-o",
    ]
    assert kernel.complete("%refchain h --a") == ["--all"]


def test_the_cell_that_assigns_a_holder_is_named(kernel: Kernel) -> None:
    count = kernel.ok("def f():\n    named = 1\nnamed, other = [torch.ones(9)], 2").count
    kernel.ok("named[0]; [named for named in range(3)]; f.named = 3\nlambda named: 0;")
    kernel.ok("%refchain named[0] -o kept ;")
    assert kernel.value("kept.chains[0].links[0].cell") == str(count)
    kernel.ok("probe = weakref.ref(named[0])\n%refchain probe() -o kept ;")
    assert f"last assigned in In[{count}]" in kernel.value("kept.html()")
    kernel.ok("exec('unnoted = [torch.ones(9)]')\n%refchain unnoted[0] -o kept ;")
    assert kernel.value("kept.chains[0].links[0].cell") == "None"


def test_types_and_growth(kernel: Kernel) -> None:
    kernel.ok("%reload_ext nbinspect\nclass Batch: pass")
    assert "types are alive." in kernel.ok("%refchain --growth -o first").text("display")
    kernel.ok("batches = [Batch() for _ in range(70)]")
    reply = kernel.ok("m = %refchain --growth 3")
    assert "most of them of type Batch." in reply.text("display")
    assert (
        kernel.value("next(c.n_more for c in m.types if c.type_name == '__main__.Batch')") == "70"
    )
    kernel.ok("%refchain --types 2 -o common ;")
    assert kernel.value("common.n_rows, common.is_growth") == "(2, False)"
    kernel.ok("batches += [Batch() for _ in range(5)]\nm = %refchain --growth;")
    assert kernel.value("next(c.n_more for c in m.types if c.type_name == '__main__.Batch')") == "5"
