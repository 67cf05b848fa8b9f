"""What autograd graphs keep, charged to the variable or list whose graph it is; and C++ cycles."""

from __future__ import annotations

import pytest
import torch
from planting import Planted, Planter, check

from nbinspect.holders import census
from nbinspect.holders.search import Search

CASES = [
    Planted(
        "losses with their graphs",
        """
import torch
layer = torch.nn.Linear(16, 16, bias=False)
losses = []
for _ in range(3):
    hidden = layer(torch.ones(8, 16))
    losses.append((hidden * hidden).mean())
del hidden
""",
        {
            ("PARAMETER", "layer.weight"): 1024,
            ("SAVED_FOR_BACKWARD", "losses[0..2]"): 3 * 2 * 512,
            ("VARIABLE", "losses[0]"): 4,
            ("VARIABLE", "losses[1]"): 4,
            ("VARIABLE", "losses[2]"): 4,
        },
        also={"losses[0..2]": "MulBackward0"},
    ),
    Planted(
        "graphs kept in other places",
        """
import torch
def loss(n):
    x = torch.ones(n, requires_grad=True)
    return x.exp().sum()
by_name = {"loss": loss(100)}
class Log:
    pass
log = Log()
log.total = loss(200)
nested = [[loss(300)], {"a": (loss(400),)}]
def waiting():
    y = loss(500)
    yield y
generator = waiting()
next(generator)
total = 0
for n in (600, 700):
    total = total + loss(n)
""",
        {
            ("SAVED_FOR_BACKWARD", "by_name['loss']"): 800,
            ("SAVED_FOR_BACKWARD", "log.total"): 1600,
            ("SAVED_FOR_BACKWARD", "nested[0][0]"): 2400,
            ("SAVED_FOR_BACKWARD", "nested[1]['a'][0]"): 3200,
            ("SAVED_FOR_BACKWARD", "generator, generator waiting() cell.py:14, variable y"): 4000,
            ("SAVED_FOR_BACKWARD", "total"): 10400,
            ("VARIABLE", "by_name['loss']"): 4,
            ("VARIABLE", "log.total"): 4,
            ("VARIABLE", "nested[0][0]"): 4,
            ("VARIABLE", "nested[1]['a'][0]"): 4,
            ("FRAME", "generator, generator waiting() cell.py:14, variable y"): 4,
            ("VARIABLE", "total"): 4,
        },
    ),
    Planted(
        "a recurrent state",
        """
import torch
state = torch.zeros(8, 64, requires_grad=True)
for _ in range(5):
    state = state.tanh()
""",
        {("SAVED_FOR_BACKWARD", "state"): 6 * 2048},
        also={"state": "VARIABLE state"},
    ),
    Planted(
        "a graph that was retained",
        """
import torch
x = torch.ones(100, requires_grad=True)
loss = x.exp().sum()
loss.backward(retain_graph=True)
spent = x.cos().sum()
spent.backward()
""",
        {
            ("SAVED_FOR_BACKWARD", "loss"): 800,
            ("GRADIENT", "x.grad"): 400,
            ("VARIABLE", "loss"): 4,
            ("VARIABLE", "spent"): 4,
        },
        also={"loss": "VARIABLE x"},
    ),
    Planted(
        "a function's context",
        """
import torch
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.extra, ctx.parts = x.exp(), [{"k": torch.ones(999)}]
        ctx.save_for_backward(x.cos())
        return x * x
    @staticmethod
    def backward(ctx, grad):
        return grad
y = Square.apply(torch.ones(100, requires_grad=True))
""",
        {("SAVED_FOR_BACKWARD", "y"): 4 * (100 + 999 + 100 + 100), ("VARIABLE", "y"): 400},
        also={"y": "attribute parts[0]['k'] of SquareBackward"},
    ),
    Planted(
        "a checkpoint does not run again",
        """
import torch
from torch.utils.checkpoint import checkpoint
def block(x):
    facts.append("forward")
    return x.exp().cos()
x = torch.ones(100, requires_grad=True)
def through(x, reentrant):
    for _ in range(3):
        x = checkpoint(block, x, use_reentrant=reentrant, preserve_rng_state=False)
    return x.sum()
y, z = through(x, False), through(torch.ones(200, requires_grad=True), True)
""",
        {
            ("SAVED_FOR_BACKWARD", "y"): 3 * 400,
            ("SAVED_FOR_BACKWARD", "z"): 3 * 800,
            ("VARIABLE", "y"): 4,
            ("VARIABLE", "z"): 4,
        },
        facts=["forward"] * 6,
        also={"y": "VARIABLE x"},
    ),
    Planted(
        "packed tensors are not unpacked",
        """
import torch
def pack(t):
    facts.append("pack")
    return [t.clone()]
def unpack(kept):
    facts.append("unpack")
    return kept[0]
w = torch.ones(100, requires_grad=True)
with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
    y = w.exp()
def as_it_is(t):
    return t
with torch.autograd.graph.saved_tensors_hooks(as_it_is, as_it_is):
    z = w.cos()
""",
        {
            ("SAVED_FOR_BACKWARD", "y"): 400,
            ("VARIABLE", "y"): 400,
            ("SAVED_FOR_BACKWARD", "z"): 400,
            ("VARIABLE", "z"): 400,
        },
        facts=["pack"],
        also={"y": "saved by ExpBackward0", "z": "VARIABLE w"},
    ),
    Planted(
        "garbage in Python's cycles",
        """
import gc, torch
gc.disable()
class Trainer:
    def __init__(self):
        self.weights, self.callback = torch.ones(10), self.report
    def report(self):
        pass
Trainer()
ring = [torch.ones(20)]
ring.append(ring)
first, second = {}, {}
class Box:
    pass
first["next"], second["back"] = second, first
box = Box()
box.t, box.me = torch.ones(30), box
del ring, first, second, box
def failing():
    local = torch.ones(40)
    try:
        raise ValueError
    except ValueError as error:
        kept = error
failing()
def recursive():
    big = torch.ones(50)
    def again():
        return again, big
recursive()
model = torch.nn.Linear(4, 4, bias=False)
model.me = [model]
del model
""",
        {
            ("CYCLE", "Trainer.weights"): 40,
            ("CYCLE", "list[0]"): 80,
            ("CYCLE", "Box.t"): 120,
            ("CYCLE", "frame failing() cell.py:24, variable local"): 160,
            ("CYCLE", "function again, closure variable 'big'"): 200,
            ("CYCLE", "Linear.weight"): 64,
        },
        also={"list[0]": "waits for the collector", "Linear.weight": "waits for the collector"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_graphs(case: Planted, planter: Planter) -> None:
    check(case, planter.found(case.code))


CYCLES = Planted(
    "cycles through C++",
    """
import gc, torch
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.view = y[:5]
        return y
    @staticmethod
    def backward(ctx, grad):
        return grad
class Whole(Exp):
    @staticmethod
    def forward(ctx, x):
        ctx.out = x.exp()
        return ctx.out
weight = torch.ones(100, requires_grad=True)
weight.tanh().sum().backward(create_graph=True)
del weight
Exp.apply(torch.ones(200, requires_grad=True))
Whole.apply(torch.ones(300, requires_grad=True))
gc.collect()
""",
    {("CYCLE", "tensor 100 float32"): 4 * 300 + 4, ("CYCLE", "tensor 5 float32"): 1600},
    also={
        "tensor 100 float32": "no collector frees",
        "tensor 5 float32": "no collector frees",
    },
)


def test_cycles_through_cpp() -> None:
    planter = Planter()  # they never go, so their process must
    try:
        check(CYCLES, planter.found(CYCLES.code))
    finally:
        planter.stop()


class Counted(dict):
    """A dictionary that counts how often it is asked."""

    n_asked = 0

    def __getitem__(self, key):
        Counted.n_asked += 1
        return super().__getitem__(key)


def test_a_longer_graph_takes_no_more_for_each_of_its_nodes(monkeypatch):
    made = Search.__init__

    def counted(self, graph):
        made(self, graph)
        self.arrivals = Counted(self.arrivals)

    monkeypatch.setattr(Search, "__init__", counted)

    def asked(n_nodes):
        weight = torch.ones(2, 2, requires_grad=True)
        out = weight
        for _ in range(n_nodes):
            out = torch.tanh(out * weight)
        Counted.n_asked = 0
        census()
        assert out.requires_grad
        return Counted.n_asked

    few = asked(200)
    assert asked(1600) < 2 * 8 * few
