"""What becomes of the watches: options, stacking, nesting, interrupts and failures of their own."""

from __future__ import annotations

import pytest
from kerneldriver import Kernel

REPORT = ("display", "<toy n=1 error=>")
USAGE_ERRORS = {
    "%%toy --nope": "%%toy: unknown option --nope (see %%toy?)",
    "%%toy what": "%%toy: unexpected argument what (see %%toy?)",
    "%%toy -n": "%%toy: -n expected one argument (see %%toy?)",
    "%%toy -n x": "%%toy: -n takes a whole number from 1 up, not x (see %%toy?)",
    "%%toy -n -1": "%%toy: -n takes a whole number from 1 up, not -1 (see %%toy?)",
    "%%toy -n 0": "%%toy: -n takes a whole number from 1 up, not 0 (see %%toy?)",
    "%%toy -o 3d": "%%toy: -o takes the name of a variable, not 3d (see %%toy?)",
    "%%toy -o for": "%%toy: -o takes the name of a variable, not for (see %%toy?)",
    "%%toy -o a.b": "%%toy: -o takes the name of a variable, not a.b (see %%toy?)",
    "%%toy 'open": "%%toy: no closing quotation (see %%toy?)",
    "%%toy\n%%other --nope": "%%other: unknown option --nope (see %%other?)",
    "%%time\n%%toy --nope": "%%toy: unknown option --nope (see %%toy?)",
    "%%toy\n%%other --nope\n%%time": "%%other: unknown option --nope (see %%other?)",
}


@pytest.mark.parametrize("head", USAGE_ERRORS)
def test_bad_option_is_one_line_and_the_body_does_not_run(kernel: Kernel, head: str) -> None:
    reply = kernel.run(f"{head}\nprint('ran')")
    assert reply.status == "error"
    assert reply.error == f"UsageError: {USAGE_ERRORS[head]}"
    assert reply.text("stderr").strip() == f"UsageError: {USAGE_ERRORS[head]}"
    assert "ran" not in reply.text("stdout")
    assert kernel.value("toys.LOG") == "[]"


def test_comment_and_semicolon_after_options(kernel: Kernel) -> None:
    assert kernel.ok("%%toy -n 3  # three\n1").shown[-1] == ("display", "<toy n=3 error=>")
    assert kernel.ok("%%toy -o kept ;  # no report\n1").shown == [("result", "1")]
    assert kernel.value("kept.n") == "1"


def test_output_option_keeps_the_record_and_shows_it(kernel: Kernel) -> None:
    assert kernel.ok("%%toy -n 4 -o kept\n1").shown[-1] == ("display", "<toy n=4 error=>")
    assert kernel.value("type(kept).__name__, kept.n") == "('ToyReport', 4)"
    assert kernel.run("%%toy -o kept\n1/0").status == "error"
    assert kernel.value("kept.error") == "'ZeroDivisionError'"
    assert kernel.run("%%time\n%%toy -n 5 -o kept\n1").status == "ok"
    assert kernel.value("kept.n") == "5"


def test_option_from_a_variable(kernel: Kernel) -> None:
    kernel.ok("number = 6")
    assert ("display", "<toy n=6 error=>") in kernel.ok("%%toy -n {number}\n1").shown
    assert ("display", "<toy n=6 error=>") in kernel.ok("%%toy -n $number\n1").shown


STACKS = {
    "%%toy\n%%other": ["open toy", "open other", "close other", "close toy"],
    "%%toy\n\n%%other": ["open toy", "open other", "close other", "close toy"],
    "%%toy\n%%toy -n 2": ["open toy", "open toy", "close toy", "close toy"],
    "%%time\n%%toy": ["open toy", "close toy"],
    "%%toy\n%%time": ["open toy", "close toy"],
    "%%time\n%%toy\n%%other": ["open toy", "open other", "close other", "close toy"],
    "%%toy\n%%other\n%%time": ["open toy", "open other", "close other", "close toy"],
    "%%toy\n%%time\n%%other": ["open toy", "open other", "close other", "close toy"],
    "%%time\n%%toy\n%%time\n%%other": ["open toy", "open other", "close other", "close toy"],
}


@pytest.mark.parametrize("head", STACKS)
def test_stacked(kernel: Kernel, head: str) -> None:
    kernel.ok("x = 0")
    reply = kernel.ok(f"{head}\nx += 1\n!echo inside\nx + 10")
    assert ("result", "11") in reply.shown
    assert "inside" in reply.text("stdout")
    assert kernel.value("x, _, toys.LOG") == f"(1, 11, {STACKS[head]})"
    assert len(reply.texts("display")) == len(STACKS[head]) // 2


@pytest.mark.parametrize("head", STACKS)
def test_stacked_silenced(kernel: Kernel, head: str) -> None:
    reply = kernel.ok(f"{head}\n5;  # quiet")
    assert reply.texts("result") == []
    assert kernel.value(f"{reply.count} in Out") == "False"


@pytest.mark.parametrize("head", STACKS)
def test_stacked_failing(kernel: Kernel, head: str) -> None:
    reply = kernel.run(f"{head}\nx = 1\nundefined")
    assert reply.status == "error"
    assert reply.error == "NameError: name 'undefined' is not defined"
    assert "nbinspect" not in reply.text("error")
    assert kernel.value("toys.LOG") == str(STACKS[head])
    assert all("error=NameError" in text for text in reply.texts("display"))
    innermost_is_ours = not head.endswith("%%time")
    n_lines = head.count("\n") + 3
    named = f"Cell In[{reply.count}], line {n_lines}"
    assert (named in reply.text("error")) == innermost_is_ours
    if innermost_is_ours:
        assert f"----> {n_lines} undefined" in reply.text("error")


@pytest.mark.parametrize("head", ["%%toy\n%%other", "%%toy\n\n%%other"])
def test_stacked_of_our_own_can_await(kernel: Kernel, head: str) -> None:
    reply = kernel.ok(f"{head}\nimport asyncio\nawait asyncio.sleep(0, 'done')")
    assert ("result", "'done'") in reply.shown
    assert len(reply.texts("display")) == 2


def test_stacked_syntax_error_opens_nothing(kernel: Kernel) -> None:
    reply = kernel.run("%%time\n%%toy\nx = 1\ny = = 2")
    assert reply.status == "error"
    assert reply.error.startswith("SyntaxError")
    assert f"Cell In[{reply.count}], line 4" in reply.text("error")
    assert kernel.value("toys.LOG") == "[]"


def test_under_capture_and_timeit(kernel: Kernel) -> None:
    assert kernel.ok("%%capture got\n%%toy\n5").shown == []
    assert kernel.value("[o.data['text/plain'] for o in got.outputs]") == (
        "['<toy n=1 error=>', '5']"
    )
    assert len(kernel.ok("%%timeit -n 2 -r 2\n%%toy\n5").texts("display")) == 4
    assert kernel.value("toys.OPEN") == "[]"


def test_over_another_language(kernel: Kernel) -> None:
    reply = kernel.ok("%%toy\n%%html\n<b>not Python</b>")
    assert [data.get("text/html") for data in reply.data] == ["<b>not Python</b>\n", None]


def test_indented_body_when_stacked(kernel: Kernel) -> None:
    assert ("result", "3") in kernel.ok("%%time\n%%toy\n    y = 3\n    y").shown


def test_called_as_a_function(kernel: Kernel) -> None:
    reply = kernel.ok("v = get_ipython().run_cell_magic('toy', '-n 7', 'a = 1\\na + 1')")
    assert reply.shown == [("display", "<toy n=7 error=>")]
    assert kernel.value("v") == "2"


def test_empty_body_when_stacked_is_ipythons_own_error(kernel: Kernel) -> None:
    assert "body is empty" in kernel.run("%%time\n%%toy").error
    assert kernel.value("toys.LOG") == "[]"


def test_nested_cell_that_is_watched_too(kernel: Kernel) -> None:
    reply = kernel.ok("%%toy\nget_ipython().run_cell('%%other\\n5')\n6")
    assert kernel.value("toys.LOG") == "['open toy', 'open other', 'close other', 'close toy']"
    assert sorted(reply.texts("result")) == ["5", "6"]
    assert reply.texts("display") == ["<other n=1 error=>", "<toy n=1 error=>"]


def test_nested_watched_cell_in_a_plain_one(kernel: Kernel) -> None:
    reply = kernel.ok("r = get_ipython().run_cell('%%toy\\n1/0')\ntype(r.error_in_exec).__name__")
    assert reply.texts("display") == ["<toy n=1 error=ZeroDivisionError>"]
    assert reply.texts("result") == ["'ZeroDivisionError'"]


def test_silent_cell_runs_unwatched(kernel: Kernel) -> None:
    reply = kernel.run("%%toy\nsilently = 1\nprint('ran')\n5", silent=True)
    assert (reply.status, reply.shown) == ("ok", [("stdout", "ran\n")])
    assert kernel.value("silently, toys.LOG") == "(1, [])"


@pytest.mark.parametrize("head", ["%%toy", "%%time\n%%toy", "%%toy\n%%time", "%%toy\n%%other"])
def test_interrupt_ends_the_cell_and_closes_the_watch(kernel: Kernel, head: str) -> None:
    reply = kernel.interrupted(f"{head}\nimport time\nprint('go', flush=True)\ntime.sleep(30)")
    assert reply.status == "error"
    assert reply.error == "KeyboardInterrupt: "
    assert "<toy n=1 error=KeyboardInterrupt>" in reply.texts("display")
    assert kernel.value("toys.OPEN") == "[]"
    assert REPORT in kernel.ok("%%toy\n1").shown


def test_interrupt_of_an_await_is_as_in_a_plain_cell(kernel: Kernel) -> None:
    body = "import asyncio\nprint('go', flush=True)\nfor _ in range(300):\n    await asyncio.sleep(0.1)"
    plain = kernel.interrupted(f"# %%toy\n{body}")
    watched = kernel.interrupted(f"%%toy\n{body}")
    assert (watched.status, watched.error) == (plain.status, plain.error)
    assert watched.status == "error"
    assert "error=CancelledError" in watched.text("display")
    assert kernel.ok("%%toy\nawait asyncio.sleep(0, 1)").shown[-1] == REPORT


@pytest.mark.parametrize("body", ["5", "1/0"])
def test_interrupt_while_closing_closes_the_others_too(kernel: Kernel, body: str) -> None:
    plain = kernel.run(body)
    reply = kernel.run(f"%%other\n%%toy --fail interrupt\n{body}")
    assert (reply.status, reply.error) == (plain.status, plain.error)
    assert "nbinspect: interrupted, no report" in reply.text("stderr")
    assert kernel.value("toys.LOG") == "['open other', 'open toy', 'close toy', 'close other']"
    assert kernel.ok("%%toy\n1").shown[-1] == REPORT


def test_a_cell_whose_end_was_never_told_is_closed_before_the_next(kernel: Kernel) -> None:
    told = "get_ipython().events.callbacks['post_run_cell']"
    assert kernel.ok(f"%%toy\nkept = {told}[:]\n{told}.clear()").texts("display") == []
    kernel.ok(f"assert toys.OPEN == [], toys.OPEN\n{told}.extend(kept)")
    kernel.ok("del kept")
    assert kernel.ok("%%toy\nimport asyncio\nawait asyncio.sleep(0)").shown[-1] == REPORT


@pytest.mark.parametrize("when", ["make", "enter", "exit", "report", "draw"])
@pytest.mark.parametrize("head", ["{}", "%%time\n{}", "{}\n%%time", "%%other\n{}"])
@pytest.mark.parametrize("body", ["x = 5\nx", "raise IndexError('mine')"])
def test_error_of_a_watch_is_a_note_and_changes_nothing(
    kernel: Kernel, when: str, head: str, body: str
) -> None:
    reply = kernel.run(head.format(f"%%toy --fail {when}") + "\n" + body)
    fails = body.startswith("raise")
    assert reply.status == ("error" if fails else "ok")
    assert reply.error == ("IndexError: mine" if fails else "")
    assert ("result", "5") in reply.shown or fails
    notes = reply.text("stderr").splitlines()
    assert len(notes) == 1
    assert notes[0].startswith("nbinspect: %%toy itself failed, not your code: ")
    assert "(at toys.py:" in notes[0]
    assert kernel.value("toys.OPEN") == "[]"


@pytest.mark.parametrize("head", ["%%toy --fail reraise", "%%time\n%%toy --fail reraise"])
def test_watch_that_passes_the_users_error_on(kernel: Kernel, head: str) -> None:
    reply = kernel.run(f"{head}\ndef f(): 1/0\nf()")
    assert reply.error == "ZeroDivisionError: division by zero"
    assert reply.texts("stderr") == []
    kernel.ok("import sys, traceback")
    names = kernel.value("[f.name for f in traceback.extract_tb(sys.last_value.__traceback__)]")
    assert names.endswith("'<module>', 'f']")


def test_unloading_within_a_watched_cell(kernel: Kernel) -> None:
    reply = kernel.ok("%%toy\n%unload_ext nbinspect\ntoys.OPEN")
    assert reply.shown == [("result", "['toy']"), REPORT]
    assert kernel.run("%%toy\n1").error == "UsageError: Cell magic `%%toy` not found."
    assert kernel.value("toys.traces()['events']['post_run_cell']") == "0"
    kernel.ok("%load_ext nbinspect")


def test_reloading_within_a_watched_cell(kernel: Kernel) -> None:
    assert kernel.ok("%%toy\n%reload_ext nbinspect\n4").shown == [("result", "4"), REPORT]
    assert kernel.ok("%%toy\n5").shown == [("result", "5"), REPORT]


def test_cell_in_a_subshell(kernel: Kernel) -> None:
    # A kernel's subshells run cells in threads of their own; an own thread stands in.
    code = "import threading\nt = threading.Thread(target=get_ipython().run_cell, args=['%%other\\n1/0'])\nt.start()\nt.join()"
    kernel.run(f"%%toy\n{code}")
    assert kernel.value("toys.LOG") == "['open toy', 'open other', 'close other', 'close toy']"


def test_nothing_is_kept_alive(kernel: Kernel) -> None:
    kernel.ok("import weakref\nclass Big: pass")
    for head in ("%%toy", "%%time\n%%toy", "%%toy\n%%time"):
        kernel.ok(f"{head}\nbig = Big()\nref = weakref.ref(big)\ndel big")
        assert kernel.value("ref()") == "None"
        assert kernel.value("len(toys.ALIVE)") == "0"
