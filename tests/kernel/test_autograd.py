"""`%autograd` and `%%graphwatch` as their user meets them: lines, options, errors, help, Tab."""

from __future__ import annotations

import pytest
from kerneldriver import Kernel

PREPARE = """
import torch, nbinspect
from torch import nn
encoder, decoder, x = nn.Linear(4, 4), nn.Linear(4, 1), torch.randn(8, 4)
loss = decoder(encoder(x).relu()).mean()
"""


@pytest.fixture(autouse=True)
def prepared(kernel: Kernel) -> None:
    kernel.ok(PREPARE)


def test_shown_once_and_returned(kernel: Kernel) -> None:
    reply = kernel.ok("g = %autograd loss")
    sentence = "`loss` (scalar float32) was made by"
    assert [kind for kind, text in reply.shown if sentence in text] == ["display"]
    assert reply.texts("stderr") == reply.texts("result") == []
    assert kernel.value("type(g).__name__") == "'GraphReport'"
    assert kernel.ok("%autograd loss").texts("result") == []
    assert kernel.ok("%autograd loss;").shown == []
    assert kernel.ok("%autograd --depth 2 loss * 2 --saved --params -o kept ;").shown == []
    assert kernel.value("kept.name, kept.depth, kept.show_saved, kept.show_params") == (
        "('loss * 2', 2, True, True)"
    )


def test_a_watched_cell_tells_where_the_path_is_cut(kernel: Kernel) -> None:
    reply = kernel.ok(
        "%%graphwatch -o w\nhidden = encoder(x).detach()\nloss = decoder(hidden).mean()\nloss.backward()"
    )
    assert "`encoder(x).detach()` in In[" in reply.text("display")
    assert "line 2 cuts it off" in " ".join(reply.text("display").split())
    assert "hidden = encoder(x)" in reply.text("display")
    assert kernel.value("[f.line.lineno for f in w.findings if f.kind == 'CUT']") == "[2]"
    later = kernel.ok("%autograd loss").text("display")
    assert "cuts it off" in " ".join(later.split()), "the watch is remembered"
    assert kernel.value("{n.line.lineno for n in w.nodes if n.line}") == "{3}"


def test_an_error_in_a_watched_cell_is_the_users(kernel: Kernel) -> None:
    reply = kernel.run(
        "%%graphwatch\nhidden = torch.zeros(8, 4)\nfor _ in range(3):\n"
        "    hidden = encoder(x + hidden).relu()\n    loss = hidden.mean()\n    loss.backward()"
    )
    assert reply.status == "error"
    assert "second time" in reply.error
    assert "goes on into an earlier step" in " ".join(reply.text("display").split())
    assert "hidden = hidden.detach()" in reply.text("display")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", "%autograd: name a tensor, e.g. %autograd loss (see %autograd?)"),
        ("los", "%autograd: there is no los; did you mean loss? (see %autograd?)"),
        ("[loss]", "%autograd: autograd looks at tensors, not at list (see %autograd?)"),
        ("loss --depth 0", "%autograd: --depth takes a whole number from 1 up, not 0"),
        ("--nope loss", "%autograd: unknown option --nope (see %autograd?)"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(kernel: Kernel, line: str, error: str) -> None:
    reply = kernel.run(f"%autograd {line}\nprint('went on')")
    assert reply.status == "error"
    assert reply.error.startswith(f"UsageError: {error}")
    assert reply.text("stdout") == ""


def test_a_bad_option_keeps_the_cell_from_running(kernel: Kernel) -> None:
    reply = kernel.run("%%graphwatch --depht 2\nprint('ran')")
    assert reply.error.startswith("UsageError: %%graphwatch: unknown option --depht")
    assert "ran" not in reply.text("stdout")


def test_help_and_tab(kernel: Kernel) -> None:
    text = kernel.ok("%autograd?").help
    assert "usage: %autograd EXPR" in text
    assert "Examples:" in text
    assert kernel.complete("%autograd loss --") == ["--depth", "--params", "--saved"]
    assert "%%graphwatch" in kernel.ok("%%graphwatch?").help
