"""`%refchain` as its user meets it: expressions, options, old outputs and errors, help and Tab."""

from __future__ import annotations

import time

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


RAISES = "exec('raise ValueError(chr(0x202e) + 500 * chr(60))')"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", "%refchain: name what to look at, e.g. %refchain h (see %refchain?)"),
        ("cahce", "%refchain: there is no cahce; did you mean cache? (see %refchain?)"),
        ("cache['x']", "%refchain: cache['x'] raises KeyError: 'x' (see %refchain?)"),
        (RAISES, f"%refchain: {RAISES} raises ValueError: \\u202e{190 * '<'}"),
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


def bound_in(kernel: Kernel, name: str) -> int | None:
    kernel.ok(f"found = nbinspect.refchain({name}, name={name!r}, all=True)")
    text = kernel.value("found.origin").strip("'")
    assert "last assigned in In[" in text or text == ""
    return int(text.partition("[")[2].rstrip("]")) if text else None


WAYS = {  # of binding `bound`, whatever the source looks like
    "plain": "bound = torch.ones(9)",
    "tuple": "bound, *_rest = torch.ones(9), 1, 2",
    "with": "from contextlib import nullcontext\nwith nullcontext(torch.ones(9)) as bound: pass",
    "loop": "for bound in [torch.ones(2), torch.ones(9)]: pass",
    "walrus": "if (bound := torch.ones(9)) is not None: pass",
    "exec": "exec('bound = torch.ones(9)')",
    "globals": "globals()['bound'] = torch.ones(9)",
    "function": "def make():\n    global bound\n    bound = torch.ones(9)\nmake()",
    "again": "for _ in range(4): bound = torch.ones(9)",  # may lie where the last one lay
    "class": "class bound: pass",
    "in-place": "bound = [1]\nbound += [2]",
    "magic": "%%time\nbound = torch.ones(9)",
    "nested": "get_ipython().run_cell('1')\nbound = torch.ones(9)\nget_ipython().run_cell('1')",
}


@pytest.mark.parametrize("code", WAYS.values(), ids=WAYS.keys())
def test_the_cell_that_bound_a_name_is_known(kernel: Kernel, code: str) -> None:
    kernel.ok("bound = torch.ones(9)")
    for _ in range(2):
        kernel.ok(code)
        count = int(kernel.value("len(In) - 1")) - 1
        kernel.run("def unrelated():\n    bound = 1\n[bound for bound in range(3)]; print(bound)")
        assert kernel.run("if 0: bound = 5\nbound = 1 / 0").error.startswith("ZeroDivision")
        if code.startswith("class"):
            assert "last assigned" in kernel.value("nbinspect.refchain(bound, name='bound').origin")
            continue
        assert bound_in(kernel, "bound") == count


def test_where_holders_are_from_is_told(kernel: Kernel) -> None:
    count = kernel.ok("named = [torch.ones(9)]\nprobe = weakref.ref(named[0])").count
    kernel.ok("exec('named.append(1)')\nfrom nbinspect.referrers.view import graph")
    kernel.ok("%refchain probe() -o kept ;")
    assert kernel.value("kept.chains[0].links[0].cell") == str(count)
    shown = kernel.value("kept.html()")
    assert f"first seen in In[{count}]" in shown
    assert "on cpu" in shown
    kernel.ok("def wait():\n    inner = torch.ones(3)\n    yield weakref.ref(inner)\nw = wait()")
    made = int(kernel.value("len(In) - 1")) - 1
    kernel.ok("m = nbinspect.refchain(next(w)())")
    origin = f"runs wait(), defined in In[{made}] line 1"
    assert (
        kernel.value("[n.detail[-1] for n in graph(m).nodes if n.role == 'root']")
        == f"['{origin}']"
    )


def test_a_node_knows_its_cell_where_torch_notes_it(kernel: Kernel) -> None:
    first = kernel.ok(
        "def f(t): return (t * t).sum()\nleaf = torch.ones(3, requires_grad=True)"
    ).count
    kernel.ok("quiet = [f(leaf)]")
    code = "import warnings\nwarnings.simplefilter('ignore')\nwith torch.autograd.detect_anomaly():\n    told = f(leaf)"
    count = kernel.ok(code).count
    kernel.ok("a, b = nbinspect.refchain(told, name='told'), nbinspect.refchain(quiet[0])")
    assert kernel.value("a.origin") == f"'made in In[{first}] line 1, called by In[{count}] line 4'"
    assert kernel.value("b.origin") == f"'made in In[{count - 1}]'"


UNNAMED = {  # (cells, the last of which makes it, what it is, what is said of it)
    "an item of a list": (["a = [1]", "a.append(torch.ones(3))"], "a[1]", "first seen in"),
    "an item of an item": (["a = {}", "a['k'] = [torch.ones(3)]"], "a['k'][0]", "first seen in"),
    "an item that grew in a function": (
        ["a = {'k': []}\ndef grow(): a['k'].append(torch.ones(3))", "grow()"],
        "a['k'][0]",
        "first seen in",
    ),
    "an attribute of an instance": (
        ["class A: pass\na = A()", "a.x = A()"],
        "a.x",
        "first seen in",
    ),
    "a layer that was added": (
        ["a = nn.Sequential(nn.ReLU())", "a.append(nn.Linear(2, 2))"],
        "a[1]",
        "first seen in",
    ),
    "a weight of it": (
        ["a = nn.Sequential(nn.ReLU())", "a.append(nn.Linear(2, 2))"],
        "a[1].weight",
        "first seen in",
    ),
    "a gradient": (
        ["a = nn.Linear(2, 2)", "a(torch.ones(1, 2)).sum().backward()"],
        "a.weight.grad",
        "first seen in",
    ),
    "an optimizer's state": (
        [
            "a = nn.Linear(2, 2); b = torch.optim.Adam(a.parameters())",
            "a(torch.ones(1, 2)).sum().backward(); b.step()",
        ],
        "b.state[a.weight]['exp_avg']",
        "first seen in",
    ),
    "a closure": (
        ["def f(x):\n    return lambda: x\na = []", "a.append(f(torch.ones(3)))"],
        "a[0].__closure__[0].cell_contents",
        "first seen in",
    ),
    "a loss": (["a = []", "a.append((leaf * 2).exp().sum())"], "a[0]", "made in"),
    "a loss that a function made": (
        ["a = []\ndef f(): return (leaf * 2).sum()", "a.append(f())"],
        "a[0]",
        "made in",
    ),
    "an activation without a name": (
        ["a = []", "a.append((leaf * 2).exp().sum())"],
        "a[0].grad_fn.next_functions[0][0].next_functions[0][0]",
        "made in",
    ),
    "a gradient's own graph": (
        ["a = (leaf ** 3).sum()", "b = [torch.autograd.grad(a, leaf, create_graph=True)[0]]"],
        "b[0]",
        "made in",
    ),
}


@pytest.mark.parametrize(("cells", "it", "said"), UNNAMED.values(), ids=UNNAMED.keys())
def test_the_cell_of_what_has_no_name_is_known(
    kernel: Kernel, cells: list[str], it: str, said: str
) -> None:
    kernel.ok("from torch import nn\nleaf = torch.ones(3, requires_grad=True)")
    *_, count = [kernel.ok(code).count for code in cells]
    kernel.ok("unrelated = [torch.ones(3) for _ in range(9)]\nother = (leaf + 1).sum()")
    kernel.ok(f"found = nbinspect.refchain({it}, name='it')")
    assert kernel.value("found.origin") == f"'{said} In[{count}]'"
    assert f"{said} In[{count}]" in kernel.value("found.html()")
    kernel.ok(f"made = {it}\nit = nbinspect.refchain(made, name='made').origin")
    kernel.ok("del a, made, found; globals().pop('b', None);")


def test_what_a_saved_value_is_from(kernel: Kernel) -> None:
    kernel.ok("x = torch.ones(3)\nleaf = torch.ones(3, requires_grad=True)")
    count = kernel.ok("loss = (leaf * x.view(3)).sum()").count
    kernel.ok("saved = loss.grad_fn.next_functions[0][0]._raw_saved_other.data")
    kernel.ok("probe = weakref.ref(saved); del saved")
    kernel.ok("found = nbinspect.refchain(probe(), name='it')")
    assert kernel.value("found.chains[0].links[-1].origin") == (
        f"'saved for backward in In[{count}]'"
    )
    assert f"saved for backward in In[{count}]" in kernel.value("found.html()")


def test_what_a_cell_has_just_made_is_of_that_cell(kernel: Kernel) -> None:
    kernel.ok("leaf, kept = torch.ones(3, requires_grad=True), []")
    reply = kernel.ok(
        "kept += [torch.ones(3), leaf * 2]\nprint([nbinspect.refchain(one).origin for one in kept])"
    )
    count = reply.count
    expected = [f"first seen in In[{count}]", f"made in In[{count}]"]
    assert reply.text("stdout").strip() == str(expected)


def test_what_cannot_be_known_is_not_guessed(kernel: Kernel) -> None:
    kernel.ok(
        "import threading, time, ctypes\nkept = []\nlong = [[torch.ones(3)] for _ in range(6000)]\n"
        "leaf = torch.ones(3, requires_grad=True)\nbefore = leaf * 2"
    )
    kernel.ok(
        "def work():\n"
        "    time.sleep(0.4)\n"
        "    kept.append(torch.ones(3))\n"
        "threading.Thread(target=work).start()"
    )
    time.sleep(1)
    kernel.ok("made = []\ndef other(): made.append((before * 2).sum())")
    kernel.ok("one = threading.Thread(target=other); one.start(); one.join()")
    kernel.ok("del long[3000:]")
    origins = "[nbinspect.refchain(one).origin for one in (kept[0], made[0], long[9][0])]"
    assert kernel.value(f"{origins}[0]") == "''"
    assert "made in" not in kernel.value(f"{origins}[1]")
    assert kernel.value(f"{origins}[2]") == "''"


def test_looking_on_keeps_nothing_alive_and_costs_little(kernel: Kernel) -> None:
    kernel.ok("kept = [torch.ones(3)]; probe = weakref.ref(kept[0])")
    kernel.ok("'another'")
    kernel.ok("uses = kept[0]._use_count(), sys.getrefcount(kept[0]); kept.clear()")
    assert kernel.value("uses") == "(1, 2)"
    assert kernel.value("probe() is None") == "True"
    kernel.ok("many = [{n: [n]} for n in range(500_000)]\nmodel = torch.nn.Transformer(32, 2)")
    kernel.ok("from nbinspect.sightings import Sightings\nsights = Sightings()")
    kernel.ok(
        "def cost():\n"
        "    began = time.process_time(); sights.look(globals(), 1)\n"
        "    return time.process_time() - began\n"
        "cost(); costs = sorted(cost() for _ in range(9))"
    )
    assert float(kernel.value("costs[4]")) < 0.02  # 2 ms, on a machine ten times as slow


def test_types_and_growth(kernel: Kernel) -> None:
    kernel.ok("%reload_ext nbinspect\nclass Batch: pass")
    assert "types are alive." in kernel.ok("%refchain --growth -o first").text("display")
    kernel.ok("batches = [Batch() for _ in range(9000)]")
    reply = kernel.ok("m = %refchain --growth 3")
    assert "most of them of type Batch." in reply.text("display")
    assert (
        kernel.value("next(c.n_more for c in m.types if c.type_name == '__main__.Batch')") == "9000"
    )
    kernel.ok("%refchain --types 2 -o common ;")
    assert kernel.value("common.n_rows, common.is_growth") == "(2, False)"
    kernel.ok("batches += [Batch() for _ in range(5)]\nm = %refchain --growth;")
    assert kernel.value("next(c.n_more for c in m.types if c.type_name == '__main__.Batch')") == "5"


PLACES = {  # (what one cell does with `t`, how the nearest chain begins, how many mends it takes)
    "an event": (
        "get_ipython().events.register('post_run_cell', lambda *a, t=t: None)",
        "get_ipython().events.callbacks['post_run_cell'][",
        1,
    ),
    "a magic": (
        """
from IPython.core.magic import register_line_magic as register
@register
def mine(line, t=t): pass
""",
        "mine, default argument",
        3,
    ),
    "a widget that only the front end shows": (
        """
import ipywidgets
widget = ipywidgets.IntSlider()
widget.observe(lambda change, t=t: t, 'value'); del widget
""",
        "ipywidgets.widgets.widget._instances[",
        1,
    ),
    "the context of the last error": (
        "def g(t): raise ValueError('x')\ntry:\n    g(t)\nexcept ValueError:\n    del t\n    raise KeyError('y')",
        "sys.last_value -> .__context__ -> frame g()",
        1,
    ),
}


@pytest.mark.parametrize(("code", "begins", "mends"), PLACES.values(), ids=PLACES.keys())
def test_places_of_a_notebook(kernel: Kernel, code: str, begins: str, mends: int) -> None:
    kernel.ok("t = torch.ones(70); probe = weakref.ref(t)")
    kernel.run(code)
    kernel.ok("globals().pop('t', None);")
    kernel.ok("m = nbinspect.refchain(probe())")
    assert kernel.value("str(m.chains[0])").strip("\"'").startswith(begins)
    assert "_nbinspect" not in kernel.value("m.text()")
    for _ in range(mends):
        kernel.ok(
            "code = nbinspect.refchain(probe()).code if probe() is not None else ''\nexec(code)"
        )
    kernel.ok("sys.last_value = sys.last_traceback = sys.last_exc = None; gc.collect();")
    assert kernel.value("probe() is None") == "True"
