"""A line magic shows its record exactly once, and returns it."""

from __future__ import annotations

import pytest
from kerneldriver import Kernel

SHOWN = ("display", "<line n=1 error=>")
ONCE = {
    "last line": "%toyline",
    "last line, automagic": "toyline",
    "middle": "%toyline\nx = 1",
    "assigned": "m = %toyline",
    "assigned, then last": "m = %toyline\nm",
    "in an if": "if True:\n    %toyline",
    "with a comment": "%toyline  # what is there",
    "called": "get_ipython().run_line_magic('toyline', '')",
    "in a function": "def f():\n    m = %toyline\n    return m\nr = f()",
    "last in a function": "def f():\n    m = %toyline\n    return m\nf()",
    "silenced value of an assignment": "m = %toyline\nm;",
    "in a watched cell": "%%toy -o t ;\n%toyline",
}


@pytest.mark.parametrize("code", ONCE.values(), ids=ONCE)
def test_shown_once(kernel: Kernel, code: str) -> None:
    assert kernel.ok(code).shown == [SHOWN]


def test_shown_each_time_in_a_loop(kernel: Kernel) -> None:
    assert kernel.ok("for i in range(3):\n    %toyline").shown == [SHOWN] * 3


def test_returned(kernel: Kernel) -> None:
    reply = kernel.ok("%toyline -n 3")
    assert kernel.value(f"_.n, Out[{reply.count}].n, _{reply.count}.n") == "(3, 3, 3)"
    kernel.ok("m = %toyline -n 4")
    assert kernel.value("m.n") == "4"


def test_shown_again_in_a_later_cell_and_by_display(kernel: Kernel) -> None:
    assert kernel.ok("m = %toyline").shown == [SHOWN]
    assert kernel.ok("m").shown == [("result", SHOWN[1])]
    assert kernel.ok("m = %toyline\ndisplay(m)").shown == [SHOWN, SHOWN]
    assert kernel.ok("m").shown == [("result", SHOWN[1])]


def test_another_record_in_the_same_cell_is_shown(kernel: Kernel) -> None:
    code = "%toyline\ntoys.ToyReport('made', 2)"
    assert kernel.ok(code).shown == [SHOWN, ("result", "<made n=2 error=>")]
    code = "a = %toyline -n 1\nb = %toyline -n 2\na"
    assert [text for _, text in kernel.ok(code).shown] == [
        "<line n=1 error=>",
        "<line n=2 error=>",
        "<line n=1 error=>",
    ]


@pytest.mark.parametrize(
    "code", ["%toyline;", "%toyline ;", "%toyline -n 1;", "%toyline ;  # why", "%toyline; # why"]
)
def test_semicolon_shows_nothing_and_returns(kernel: Kernel, code: str) -> None:
    assert kernel.ok(code).shown == []
    assert kernel.ok(f"if True:\n    m = {code}\n").shown == []
    assert kernel.value("m.n") == "1"
    assert kernel.ok("m").shown == [("result", SHOWN[1])]


def test_semicolon_in_strings_is_left_alone(kernel: Kernel) -> None:
    text = "\n%toyline;\nm = %toyline;\n"
    assert kernel.ok(f"s = '''{text}'''").shown == []
    assert kernel.value("s") == repr(text)
    kernel.ok("a = 7; toyline = 4")
    assert kernel.ok("b = a %toyline;b").shown == [("result", "3")]
    kernel.ok("del toyline")


def test_captured(kernel: Kernel) -> None:
    assert kernel.ok("%%capture got\n%toyline").shown == []
    assert kernel.value("[o.data for o in got.outputs if o.data]") == (
        "[{'text/plain': '<line n=1 error=>'}]"
    )


def test_output_option(kernel: Kernel) -> None:
    assert kernel.ok("%toyline -n 9 -o kept").shown == [("display", "<line n=9 error=>")]
    assert kernel.value("kept.n") == "9"


def test_no_record_is_none(kernel: Kernel) -> None:
    assert kernel.ok("m = %toyline --fail none").shown == []
    assert kernel.value("m") == "None"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("%toyline --nope", "%toyline: unknown option --nope (see %toyline?)"),
        ("%toyline -n -3", "%toyline: -n takes a whole number from 1 up, not -3 (see %toyline?)"),
        ("%toyline --fail value", "%toyline: no such toy: lost (see %toyline?)"),
        ("%toy", "%toy: write %%toy on the first line of the cell to be watched"),
    ],
)
def test_usage_error(kernel: Kernel, line: str, error: str) -> None:
    reply = kernel.run(f"{line}\nprint('went on')")
    assert reply.status == "error"
    assert reply.error == f"UsageError: {error}"
    assert [(kind, text.strip()) for kind, text in reply.shown] == [
        ("stderr", f"UsageError: {error}")
    ]


@pytest.mark.parametrize("when", ["run", "draw"])
def test_own_error_is_a_note_and_the_cell_goes_on(kernel: Kernel, when: str) -> None:
    reply = kernel.ok(f"m = %toyline --fail {when}\n'went on'")
    assert reply.text("stderr").startswith("nbinspect: %toyline itself failed, not your code: ")
    assert len(reply.text("stderr").splitlines()) == 1
    assert ("result", "'went on'") in reply.shown
    assert kernel.value("m is None") == str(when == "run")


def test_help(kernel: Kernel) -> None:
    for asked in ("%toyline?", "%%toy?", "%toy?", "%gpumem?", "%%gpumem?", "%%memwatch?"):
        text = kernel.ok(asked).help
        assert f"usage: {asked.strip('?')}" in text or asked == "%toy?"
        assert "Examples:" in text
        assert "-o NAME" in text
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("typed", "matches"),
    [
        ("%toyline ", ["--fail", "-n", "-o"]),
        ("%toyline -", ["--fail", "-n", "-o"]),
        ("%toyline --f", ["--fail"]),
        ("x = %toyline --f", ["--fail"]),
        ("x = 1\n%toyline --f", ["--fail"]),
        ("%toyline -n 3 -", ["--fail", "-o"]),
        ("%toyline --fail ", ["enter", "exit"]),
        ("%toyline --fail ex", ["exit"]),
        ("%%toy --fail ex", ["exit"]),
        ("%%memwatch --e", ["--eager", "--exact"]),
        ("%gpumem --l", ["--live"]),
        ("%gpumem --device c", ["cpu"]),
    ],
)
def test_completion(kernel: Kernel, typed: str, matches: list[str]) -> None:
    assert kernel.complete(typed) == matches


@pytest.mark.parametrize(
    "typed", ["%toyline -o ", "%toyline -n ", "%time --f", "'%toyline -", "%toy -"]
)
def test_no_completion_of_ours(kernel: Kernel, typed: str) -> None:
    assert not {"--fail", "-n", "-o"} & set(kernel.complete(typed))
