"""Variables of calls: running, waiting, or kept by an error."""

from __future__ import annotations

import pytest
from planting import Planted, Planter, check

CASES = [
    Planted(
        "generators and coroutines",
        """
import torch
def batches(arg):
    chunk = torch.ones(10)
    yield 1
generator = batches(torch.ones(20))
next(generator)
unstarted = batches(torch.ones(30))
def outer():
    own = torch.ones(40)
    yield from batches(torch.ones(50))
delegating = outer()
next(delegating)
class Pause:
    def __await__(self):
        yield 1
async def fetch():
    data = torch.ones(60)
    await Pause()
coroutine = fetch()
coroutine.send(None)
async def stream():
    item = torch.ones(70)
    yield 1
stream = stream()
try:
    stream.asend(None).send(None)
except StopIteration:
    pass
expression = (v for v in (torch.ones(80), None))
next(expression)
""",
        {
            ("FRAME", "generator, generator batches() cell.py:5, variable chunk"): 40,
            ("FRAME", "generator, generator batches() cell.py:5, variable arg"): 80,
            ("FRAME", "unstarted, generator batches() cell.py:3, variable arg"): 120,
            ("FRAME", "delegating, generator outer() cell.py:11, variable own"): 160,
            ("FRAME", "delegating, generator batches() cell.py:5, variable chunk"): 40,
            ("FRAME", "delegating, generator batches() cell.py:5, variable arg"): 200,
            ("FRAME", "coroutine, coroutine fetch() cell.py:19, variable data"): 240,
            ("FRAME", "stream, async generator stream() cell.py:24, variable item"): 280,
            ("FRAME", "expression, generator <genexpr>() cell.py:30, variable v"): 320,
        },
    ),
    Planted(
        "a running function",
        """
import torch
def train(n):
    batch = torch.ones(n)
    def step():
        inside = batch + 1
        return nbinspect.gpumem()
    return step()
answer = train(10)
""",
        {
            ("FRAME", "frame step() cell.py:7, variable batch"): 40,
            ("FRAME", "frame step() cell.py:7, variable inside"): 40,
        },
        also={
            "frame step() cell.py:7, variable batch": "FRAME frame train() cell.py:8, variable batch"
        },
    ),
    Planted(
        "another thread's variables",
        """
import threading, torch
def work(started, stop):
    own, pair = torch.ones(10), [torch.ones(20)]
    started.set()
    stop.wait()
started, stop = threading.Event(), threading.Event()
thread = threading.Thread(target=work, args=(started, stop), name="loader")
thread.start()
started.wait()
answer = nbinspect.gpumem()
stop.set()
thread.join()
""",
        {
            ("FRAME", "frame work() cell.py:6 of thread loader, variable own"): 40,
            ("FRAME", "frame work() cell.py:6 of thread loader, variable pair[0]"): 80,
        },
    ),
    Planted(
        "a deleted local is freed at once",
        """
import weakref, torch
def work():
    t = torch.ones(10)
    ref = weakref.ref(t)
    nbinspect.gpumem()
    del t
    facts.append(ref() is None)
work()
""",
        {},
        facts=[True],
    ),
    Planted(
        "errors that were kept",
        """
import torch
def fail(n):
    act = torch.ones(n)
    raise RuntimeError("x")
def chained():
    outer = torch.ones(20)
    try:
        fail(30)
    except RuntimeError as error:
        raise ValueError("y") from error
def in_context():
    try:
        fail(40)
    except RuntimeError:
        raise ValueError("z")
def caught(call, *args):
    try:
        call(*args)
    except Exception as error:
        return error
plain, errors, group = caught(fail, 10), [caught(fail, 50)], ExceptionGroup("g", [caught(fail, 60)])
cause, context = caught(chained), caught(in_context)
class Carrier(Exception):
    pass
carrier = Carrier("words", torch.ones(70))
carrier.extra = torch.ones(80)
""",
        {
            ("TRACEBACK", "plain, frame fail() cell.py:5, variable act"): 40,
            ("TRACEBACK", "cause, frame chained() cell.py:11, variable outer"): 80,
            ("TRACEBACK", "cause.__cause__, frame fail() cell.py:5, variable act"): 120,
            ("TRACEBACK", "context.__context__, frame fail() cell.py:5, variable act"): 160,
            ("TRACEBACK", "errors[0], frame fail() cell.py:5, variable act"): 200,
            ("TRACEBACK", "group.exceptions[0], frame fail() cell.py:5, variable act"): 240,
            ("VARIABLE", "carrier.args[1]"): 280,
            ("VARIABLE", "carrier.extra"): 320,
        },
    ),
    Planted(
        "the last error",
        """
import sys, torch
def fail():
    act = torch.ones(10)
    raise RuntimeError("x", torch.ones(20))
try:
    fail()
except RuntimeError as error:
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
""",
        {
            ("TRACEBACK", "sys.last_traceback, frame fail() cell.py:5, variable act"): 40,
            ("TRACEBACK", "sys.last_value.args[1]"): 80,
        },
    ),
    Planted(
        "during backward, in a hook",
        """
import torch
x = torch.ones(10, requires_grad=True)
def hook(grad):
    global seen
    seen = nbinspect.gpumem()
y = x.exp()
y.register_hook(hook)
y.sum().backward()
answer = seen
""",
        {
            ("SAVED_FOR_BACKWARD", "y"): 80,
            ("FRAME", "frame backward() torch/_tensor.py:#, variable self"): 4,
            (
                "FRAME",
                "frame backward() torch/autograd/__init__.py:#, variable grad_tensors_[0]",
            ): 4,
        },
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_frames(case: Planted, planter: Planter) -> None:
    check(case, planter.found(case.code))
