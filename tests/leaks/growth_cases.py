"""Ways to make memory grow, each with its right answer; what users met in public is among them."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """
import functools, gc, types, weakref
import torch
from torch import nn
torch.manual_seed(0)
"""
KIB = 1024


@dataclass(frozen=True)
class Case:
    """One way to grow.

    Attributes:
        name: what it is.
        code: defines ``run``.
        holder: what keeps it.
        pattern: the known mistake.
        per_run: bytes that each repetition adds, None if not said to the byte.
        line: a part of the line that allocates it.
        says: parts of the mend.
        state: live, garbage or uncollectable.
        frees: the mend gives it back.
        items: items that the holder gets each time.
    """

    name: str
    code: str
    holder: str
    pattern: str
    per_run: int | None = None
    line: str = ""
    says: tuple[str, ...] = ()
    state: str = "live"
    frees: bool = True
    items: float = 0


CASES = [
    Case(
        "loss kept",
        "layer = nn.Linear(64, 64)\nlosses = []\ndef run():\n    for _ in range(3):\n"
        "        loss = layer(torch.randn(32, 64)).relu().sum()\n        losses.append(loss)",
        "losses",
        "loss or outputs kept with their graphs",
        3 * (2 * 32 * 64 * 4 + 4),
        "loss = layer(",
        (".item()",),
        items=3,
    ),
    Case(
        "outputs kept",
        "encoder, head = nn.Linear(32, 128), nn.Linear(128, 10)\noutputs = []\ndef run():\n"
        "    outputs.append(head(encoder(torch.randn(64, 32)).relu()))",
        "outputs",
        "loss or outputs kept with their graphs",
        says=(".detach()",),
        line="outputs.append",
        items=1,
    ),
    Case(
        "outputs kept in a dict by step",
        "layer = nn.Linear(32, 128)\nlog = {}\ndef run():\n"
        "    log[f'step {len(log)}'] = layer(torch.randn(64, 32)).relu()",
        "log",
        "loss or outputs kept with their graphs",
        says=(".detach()",),
        items=1,
    ),
    Case(
        "hidden state not detached",
        "cell, hidden = nn.GRUCell(16, 64), torch.zeros(8, 64)\ndef run():\n    global hidden\n"
        "    hidden = cell(torch.randn(8, 16), hidden)",
        "hidden",
        "state not detached",
        line="hidden = cell",
        says=("hidden.detach()",),
    ),
    Case(
        "hidden state of an object",
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.cell, self.state = nn.GRUCell(16, 64), torch.zeros(8, 64)\n"
        "    def forward(self, x):\n        self.state = self.cell(x, self.state)\n"
        "        return self.state\nnet = Net()\ndef run():\n    net(torch.randn(8, 16))",
        "net.state",
        "state not detached",
        says=("net.state.detach()",),
    ),
    Case(
        "running total",
        "layer, total = nn.Linear(64, 64), 0\ndef run():\n    global total\n"
        "    total = total + layer(torch.randn(64, 64)).exp().sum()",
        "total",
        "running total with its graph",
        says=(".item()",),
    ),
    Case(
        "hook that stores activations",
        "model = nn.Linear(64, 64)\ndef plant():\n    activations = []\n"
        "    def save_output(module, inputs, output):\n"
        "        activations.append(output.detach())\n"
        "    model.register_forward_hook(save_output)\nplant()\ndef run():\n"
        "    model(torch.randn(16, 64))",
        "hook save_output on model, closure variable 'activations'",
        "hook that stores tensors",
        16 * 64 * 4,
        says=("handle.remove()",),
        items=1,
    ),
    Case(
        "hook that stores activations in a global list",
        "model, activations = nn.Linear(64, 64), []\n"
        "model.register_forward_hook(lambda m, i, o: activations.append(o.detach()))\n"
        "def run():\n    model(torch.randn(16, 64))",
        "activations",
        "hook that stores tensors",
        16 * 64 * 4,
        items=1,
    ),
    Case(
        "a new hook each time",
        "model = nn.Linear(64, 64)\ndef run():\n    scale = torch.ones(1000)\n"
        "    model.register_forward_hook(lambda m, i, o: scale.sum())",
        "hook <lambda> on model",
        "hook that stores tensors",
        4000,
    ),
    Case(
        "retain_graph",
        "layer, kept = nn.Linear(64, 64), []\ndef run():\n"
        "    loss = layer(torch.randn(32, 64)).relu().sum()\n"
        "    loss.backward(retain_graph=True)\n    layer.zero_grad()\n    kept.append(loss)",
        "kept",
        "retain_graph",
        says=("retain_graph=True",),
        items=1,
    ),
    Case(
        "create_graph",
        "def run():\n    weight = torch.randn(100, 100, requires_grad=True)\n"
        "    weight.tanh().sum().backward(create_graph=True)",
        "tensor 100x100 float32",
        "backward with create_graph",
        line="weight",
        says=("torch.autograd.grad",),
        state="uncollectable",
        frees=False,
    ),
    Case(
        "plain attribute on ctx",
        "class Square(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        ctx.extra = x.exp()\n        return x * x\n    @staticmethod\n"
        "    def backward(ctx, grad):\n        return grad * ctx.extra\nlosses = []\ndef run():\n"
        "    x = torch.randn(1000, requires_grad=True)\n    loss = Square.apply(x).sum()\n"
        "    loss.backward()\n    losses.append(loss)",
        "losses",
        "plain attribute on ctx",
        says=("ctx.extra", "save_for_backward"),
        items=1,
    ),
    Case(
        "output kept on ctx",
        "class Keep(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        y = x.exp()\n        ctx.y = y.view(-1)\n        ctx.whole = y\n        return y\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        return grad * ctx.y\ndef run():\n"
        "    Keep.apply(torch.randn(1000, requires_grad=True))",
        "",
        "output kept on ctx",
        state="uncollectable",
        frees=False,
    ),
    Case(
        "scheduler in a cycle with itself",
        "class Scheduler:\n    def __init__(self):\n        self.average = torch.ones(1000)\n"
        "        self.hook = self.step\n    def step(self):\n        pass\ndef run():\n"
        "    Scheduler()",
        "Scheduler.average",
        "cycle of objects",
        4000,
        says=("Scheduler", "WeakMethod"),
        state="garbage",
    ),
    Case(
        "hook in a cycle with its module",
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fc = nn.Linear(30, 30)\n        self.fc.register_forward_hook(self.note)\n"
        "    def forward(self, x):\n        return self.fc(x)\n"
        "    def note(self, module, inputs, output):\n        pass\ndef run():\n"
        "    Net()(torch.ones(2, 30))",
        "Net",
        "cycle of objects",
        state="garbage",
    ),
    Case(
        "views",
        "rows = []\ndef run():\n    table = torch.randn(100, 100)\n    rows.append(table[0])",
        "rows",
        "views that keep whole tensors",
        40_000,
        says=(".clone()",),
        items=1,
    ),
    Case(
        "lru_cache on a method",
        "class Tokenizer:\n    def __init__(self):\n        self.table = torch.randn(500, 8)\n"
        "    @functools.lru_cache(maxsize=64)\n    def embed(self, token):\n"
        "        return self.table[token].sum().item()\ndef run():\n    Tokenizer().embed(3)",
        "Tokenizer.embed",
        "lru_cache on a method",
        16_000,
        says=("maxsize",),
    ),
    Case(
        "logger",
        "class Logger:\n    def __init__(self):\n        self.history = {'loss': []}\n"
        "    def log(self, **values):\n        for name, value in values.items():\n"
        "            self.history[name].append(value)\nlogger = Logger()\ndef run():\n"
        "    logger.log(loss=torch.ones(1000))",
        "logger.history['loss']",
        "tensors kept",
        4000,
        says=(".item()",),
        items=1,
    ),
    Case(
        "progress bar",
        "class Bar:\n    seen = []\n    def set_postfix(self, **values):\n"
        "        Bar.seen.append(values)\ndef run():\n"
        "    Bar().set_postfix(loss=torch.ones(1000))",
        "Bar.seen",
        "tensors kept",
        4000,
        says=("belongs to the class",),
        items=1,
    ),
    Case(
        "trainer singleton",
        "class State:\n    _shared = {}\nclass Trainer:\n    def __init__(self, model):\n"
        "        self.model = model\n        State._shared[len(State._shared)] = self\ndef run():\n"
        "    trainer = Trainer(nn.Linear(50, 50))\n    del trainer",
        "State._shared",
        "a model of each repetition",
        (50 * 50 + 50) * 4,
        items=1,
    ),
    Case(
        "model per fold",
        "models, optimizers = [], []\ndef run():\n"
        "    model = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 5))\n"
        "    optimizer = torch.optim.Adam(model.parameters())\n"
        "    model(torch.ones(2, 50)).sum().backward()\n    optimizer.step()\n"
        "    models.append(model)\n    optimizers.append(optimizer)",
        "models",
        "a model of each repetition",
        says=("state_dict()",),
        items=1,
    ),
    Case(
        "errors kept with their calls",
        "errors = []\ndef forward():\n    activations = torch.ones(1000)\n"
        "    raise RuntimeError(activations.shape)\ndef run():\n    try:\n        forward()\n"
        "    except RuntimeError as error:\n        errors.append(error)",
        "errors",
        "errors kept with their calls",
        4000,
        line="activations",
        says=("str(error)",),
        items=1,
    ),
    Case(
        "chain of objects",
        "class Step: pass\nlast = None\ndef run():\n    global last\n    step = Step()\n"
        "    step.grad, step.before = torch.ones(1000), last\n    last = step",
        "last",
        "chain of objects",
        4000,
    ),
    Case(
        "suspended generators",
        "readers = []\ndef read():\n    chunk = torch.ones(1000)\n    yield chunk.sum().item()\n"
        "def run():\n    one = read()\n    next(one)\n    readers.append(one)",
        "readers",
        "tensors kept",
        4000,
        items=1,
    ),
    Case(
        "plain Python objects",
        "class Record:\n    def __init__(self):\n        self.values = list(range(100))\n"
        "registry = []\ndef run():\n    registry.extend(Record() for _ in range(50))",
        "registry",
        "Python objects kept",
        frees=False,  # no tensor's bytes
    ),
    Case(
        "arrays over tensors",
        "arrays = []\ndef run():\n    arrays.append(torch.ones(1000).numpy())",
        "arrays",
        "tensors kept",
        4000,
        items=1,
    ),
]
