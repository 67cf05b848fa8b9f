"""A mend lets the object go and leaves the libraries that held it able to work."""

from __future__ import annotations

import pytest
from asking import Asker

H = "h = torch.ones(500)\nprobe = weakref.ref(h)\n"
LOOP = "import asyncio\nloop = asyncio.new_event_loop()\n"
WAITS = """
async def wait():
    large = torch.ones(500)
    globals()['probe'] = weakref.ref(large)
    await asyncio.sleep(1000)
"""
# What the object is left with, what the mends say in turn, and what must work after them.
LEFT_WITH = {
    "a record that a handler gathers": (
        """
import logging, logging.handlers
log = logging.getLogger('tests.mends')
log.propagate = False
log.addHandler(logging.handlers.MemoryHandler(100))
log.warning('%s', h)
""",
        ("import logging; del logging.getLogger('tests.mends').handlers[0].buffer[0]",),
        "(handler,) = log.handlers\nassert handler.buffer == []\nlog.removeHandler(handler)",
    ),
    "a function that an object of a library calls": (
        "import numpy as np\ncalls = [np.vectorize(lambda x, h=h: x)]",
        ("del calls[0]",),
        "",
    ),
    "the columns of a table": (
        "import pandas as pd\ntables = {'first': pd.DataFrame({'h': [h], 'n': [1]})}",
        ("del tables['first']",),
        "",
    ),
    "an attribute that the library does not know": (
        """
import argparse
args = argparse.Namespace(weight=torch.ones(1))
args.weight.cache = h
""",
        ("del args.weight.cache",),
        "assert repr(args)",
    ),
    "an attribute that the user added to a module": (
        "import warnings\nwarnings.added = h",
        ("del warnings.added",),
        "",
    ),
    "a hook of Python's own": (
        "import sys\nsys.excepthook = lambda *args, h=h: None",
        ("import sys; sys.excepthook = sys.__excepthook__",),
        "assert sys.excepthook is sys.__excepthook__",
    ),
    "a call that is due later": (
        LOOP + "call = loop.call_later(0.01, print, h)",
        ("call.cancel()",),
        "loop.run_until_complete(asyncio.sleep(0.02))\nloop.close()",
    ),
}


@pytest.mark.parametrize(("code", "ran", "then"), LEFT_WITH.values(), ids=LEFT_WITH.keys())
def test_a_mend_takes_nothing_that_a_library_needs(
    asker: Asker, code: str, ran: tuple[str, ...], then: str
) -> None:
    found = asker.ask(f"{H}{code}\ndel h", mends=len(ran), then=then)
    assert found.error == ""
    assert tuple(found.ran) == ran
    assert not found.alive
    assert found.report["complete"]


def test_what_a_library_goes_by_is_not_deleted(asker: Asker) -> None:
    code = (
        "import warnings\nshow = warnings.showwarning\nwarnings.showwarning = lambda *a, h=h: None"
    )
    then = "with warnings.catch_warnings(): pass\nwarnings.showwarning = show"
    found = asker.ask(f"{H}{code}\ndel h", then=then)
    assert found.error == ""
    assert found.ran == []
    assert "It goes when warnings.showwarning is set to something else" in found.report["mend"]
    assert not found.alive


def test_a_task_that_waits_is_cancelled_by_whatever_name(asker: Asker) -> None:
    begin = "task = loop.create_task(wait())\nloop.run_until_complete(asyncio.sleep(0.01))"
    found = asker.ask(LOOP + WAITS + begin, then="loop.run_until_complete(asyncio.sleep(0))")
    assert found.error == ""
    assert found.ran == ["task.cancel(); del task"]
    assert "it ends when its loop runs next" in found.text.replace("\n", " ")
    assert not found.alive
    found = asker.ask(
        LOOP + WAITS + begin, mends=2, then="loop.run_until_complete(asyncio.sleep(0))"
    )
    assert found.error == ""
    assert not found.alive


def test_a_function_that_an_iterator_calls_is_called_one(asker: Asker) -> None:
    found = asker.ask(f"{H}calls = map(h.__add__, [1, 2])\ndel h")
    assert found.error == ""
    assert found.chains() == ["calls, its function.__self__"]
    assert found.ran == ["del calls"]
    assert not found.alive
