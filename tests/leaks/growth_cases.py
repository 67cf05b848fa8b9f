"""Ways to make memory grow, each with its right answer; what users met in public is among them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
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
        frees: the part of it that the mend gives back, once all is collected.
        items: items that the holder gets each time.
        mended: what the mend says to write instead, by what it replaces.
        left: bytes that each repetition of the mended code still adds, since they are wanted.
    """

    name: str
    code: str
    holder: str
    pattern: str
    per_run: int | None = None
    line: str = ""
    says: tuple[str, ...] = ()
    state: str = "live"
    frees: float = 0.9
    items: float = 0
    mended: tuple[tuple[str, str], ...] = ()
    left: int = 0

    @property
    def mended_code(self) -> str:
        code = self.code
        for old, new in self.mended:
            assert old in code
            code = code.replace(old, new)
        return code


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
        mended=(("losses.append(loss)", "losses.append(loss.item())"),),
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
        mended=((".relu()))", ".relu()).detach())"),),
        left=2560,
    ),
    Case(
        "outputs kept in a dict by step",
        "layer = nn.Linear(32, 128)\nlog = {}\ndef run():\n"
        "    log[f'step {len(log)}'] = layer(torch.randn(64, 32)).relu()",
        "log",
        "loss or outputs kept with their graphs",
        says=(".detach()",),
        frees=0.3,  # the outputs themselves stay
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
        mended=(("16), hidden)", "16), hidden.detach())"),),
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
        mended=((".exp().sum()", ".exp().sum().item()"),),
    ),
    Case(
        "running total of losses whose backward has run",
        "layer, sums = nn.Linear(64, 64), {'loss': 0.0}\ndef run():\n    for _ in range(5):\n"
        "        loss = layer(torch.randn(8, 64)).exp().sum()\n        loss.backward()\n"
        "        layer.zero_grad()\n        sums['loss'] += loss",
        "sums['loss']",
        "running total with its graph",
        line="sums['loss'] += loss",
        says=(".item()",),
        frees=0,  # nodes, no tensors
        mended=(("+= loss", "+= loss.item()"),),
    ),
    Case(
        "a chain of objects that two lines fill",
        "class Link: pass\nlink = None\ndef run():\n    global link\n    one = Link()\n"
        "    one.next = link\n    one.keys = torch.ones(500)\n    one.values = torch.ones(1000)\n"
        "    link = one",
        "link",
        "chain of objects",
        6000,
    ),
    Case(
        "hooks that keep nothing, one more each time",
        "hooked, latest = nn.Sequential(nn.Linear(8, 8)), {}\ndef run():\n"
        "    def note(module, inputs, output): latest['output'] = output.detach()\n"
        "    hooked[0].register_forward_hook(note)\n    hooked(torch.ones(2, 8))",
        "hooked.0._forward_hooks",
        "hook registered again",
        says=("register it once",),
        items=1,
        frees=0,
        mended=(("(note)", "(note).remove()"),),
    ),
    Case(
        "a log handler more each time",
        "import io, logging\ndef run():\n"
        "    logging.getLogger('growing').addHandler(logging.StreamHandler(io.StringIO()))",
        "logging.getLogger('growing').handlers",
        "Python objects kept",
        items=1,
        frees=0,
    ),
    Case(
        "a default argument as a cache",
        "asked = [0]\ndef encoding(n, *, scale=1, table={}):\n"
        "    return table.setdefault(n, torch.ones(500) * scale)\ndef run():\n"
        "    asked[0] += 1\n    encoding(asked[0])",
        "encoding, default argument 'table'",
        "tensors kept",
        2000,
        items=1,
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
        mended=(("(save_output)", "(save_output).remove()"),),
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
        "hook registered again",
        4000,
        says=("register it once",),
        mended=(("o: scale.sum())", "o: scale.sum()).remove()"),),
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
        mended=(
            ("retain_graph=True", ""),
            ("append(loss)", "append(loss.item())"),
        ),
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
        mended=(
            (
                "weight.tanh().sum().backward(create_graph=True)",
                "torch.autograd.grad(weight.tanh().sum(), weight, create_graph=True)",
            ),
        ),
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
        mended=(
            ("ctx.extra = x.exp()", "ctx.save_for_backward(x.exp())"),
            ("grad * ctx.extra", "grad * ctx.saved_tensors[0]"),
            ("append(loss)", "append(loss.item())"),
        ),
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
        mended=(("self.hook = self.step", "self.hook = weakref.WeakMethod(self.step)"),),
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
        mended=(
            (
                "register_forward_hook(self.note)",
                "register_forward_hook(functools.partial(Net.note, weakref.proxy(self)))",
            ),
        ),
    ),
    Case(
        "views",
        "rows = []\ndef run():\n    table = torch.randn(100, 100)\n    rows.append(table[0])",
        "rows",
        "views that keep whole tensors",
        40_000,
        says=(".clone()",),
        items=1,
        mended=(("table[0]", "table[0].clone()"),),
        left=400,
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
        mended=(("maxsize=64", "maxsize=1"),),
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
        says=("`.mean().item()`",),
        items=1,
        mended=(("append(value)", "append(value.mean().item())"),),
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
        mended=(("loss=torch.ones(1000)", "loss=torch.ones(1000).mean().item()"),),
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
        mended=(("[len(State._shared)]", "['last']"),),
    ),
    Case(
        "optimizers of models that are gone",
        "optimizers = []\ndef run():\n    model = nn.Linear(50, 50)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)\n"
        "    model(torch.ones(2, 50)).sum().backward()\n    optimizer.step()\n"
        "    optimizers.append(optimizer)",
        "optimizers",
        "a model of each repetition",
        3 * (50 * 50 + 50) * 4,
        says=("state_dict()",),
        items=1,
        mended=(("optimizers.append(optimizer)", "optimizers.append(optimizer.defaults['lr'])"),),
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
        mended=(
            ("models.append(model)", "models.append(model[0].weight.sum().item())"),
            ("optimizers.append(optimizer)", "optimizers.append(0.1)"),
        ),
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
        items=50,
        frees=0,  # no tensor's bytes
    ),
    Case(
        "arrays over tensors",
        "arrays = []\ndef run():\n    arrays.append(torch.ones(1000).numpy())",
        "arrays",
        "tensors kept",
        4000,
        items=1,
    ),
    Case(
        "hooks of a parameter, one more each time",
        "model = nn.Sequential(nn.Linear(20, 20))\n"
        "optimizer = torch.optim.Adam(model.parameters())\ndef run():\n"
        "    scale = torch.ones(1000)\n"
        "    model[0].weight.register_hook(lambda g: g * scale[0])\n"
        "    model(torch.ones(2, 20)).sum().backward()\n    optimizer.step()",
        "hook <lambda> on model.0.weight",
        "hook registered again",
        4000,
    ),
    Case(
        "a state of two tensors not detached",
        "cell, hidden = nn.LSTM(20, 32), None\ndef run():\n    global hidden\n"
        "    out, hidden = cell(torch.ones(1, 64, 20), hidden)",
        "hidden",
        "state not detached",
        says=("hidden = tuple(one.detach() for one in hidden)",),
    ),
    Case(
        "a tensor that gets longer",
        "queue = nn.Module()\nqueue.register_buffer('rows', torch.zeros(0, 20))\ndef run():\n"
        "    queue.rows = torch.cat([queue.rows, torch.ones(64, 20)])",
        "queue.rows",
        "tensor that gets longer",
        64 * 20 * 4,
        line="torch.cat",
        frees=0,
    ),
    Case(
        "layers added to a model",
        "net = nn.Module()\nnet.layers = nn.ModuleList()\ndef run():\n"
        "    net.layers.append(nn.Linear(20, 20))",
        "net.layers",
        "model that gets longer",
        21 * 20 * 4,
        says=("__init__",),
        items=1,
        frees=0,
    ),
    Case(
        "groups of parameters added to an optimizer",
        "optimizer = torch.optim.SGD([torch.ones(2)], 0.1)\ndef run():\n"
        "    optimizer.add_param_group({'params': [torch.ones(1000)]})",
        "optimizer.param_groups",
        "parameters added to an optimizer",
        4000,
        items=1,
        frees=0,
    ),
    Case(
        "lists by name",
        "import collections\nmetrics = collections.defaultdict(list)\ndef run():\n"
        "    metrics['loss'].append(torch.ones(500))\n    metrics['time'].append(1.0)",
        "metrics['loss']",
        "tensors kept",
        2000,
        items=1,
    ),
    Case(
        "schedulers that are not tensors",
        "optimizer, schedulers = torch.optim.SGD([torch.ones(2)], 0.1), []\ndef run():\n"
        "    scale = torch.ones(1000)\n    schedulers.append(\n"
        "        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: float(scale[0])))",
        "schedulers",
        "tensors kept",
        4000,
        says=("objects of type LambdaLR",),
        items=1,
    ),
    Case(
        "values of a weak dictionary that hold their keys",
        "class Batch: pass\ncache = weakref.WeakKeyDictionary()\ndef run():\n"
        "    batch = Batch()\n    batch.data = torch.ones(1000)\n    cache[batch] = [batch]",
        "cache",
        "tensors kept",
        4000,
    ),
    Case(
        "threads that do not end",
        "import threading\nend = threading.Event()\ndef work(values): end.wait()\ndef run():\n"
        "    values = torch.ones(1000)\n"
        "    threading.Thread(target=work, args=(values,), daemon=True).start()",
        "threading._active",
        "threads that do not end",
        4000,
        says=("thread.join()",),
        frees=0,
    ),
    Case(
        "tasks that do not end",
        "import asyncio\nloop = asyncio.new_event_loop()\n"
        "async def wait(values): await asyncio.sleep(1000)\nasync def one():\n"
        "    values = torch.ones(1000)\n    asyncio.create_task(wait(values))\n"
        "    await asyncio.sleep(0)\ndef run():\n    loop.run_until_complete(one())",
        "loop._scheduled",
        "tasks that do not end",
        4000,
        says=("task.cancel()",),
        frees=0,  # to empty the loop's own list would break it
    ),
    Case(
        "output kept on ctx that Python can collect",
        "class Keep(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        ctx.y = x.exp()\n        return ctx.y\n    @staticmethod\n"
        "    def backward(ctx, grad):\n        return grad * ctx.y\ndef run():\n"
        "    Keep.apply(torch.randn(1000, requires_grad=True))",
        "",
        "output kept on ctx",
        state="garbage",
    ),
]
MOST_AT_ONCE = 6


def batches(cases: Iterable[Case]) -> list[list[Case]]:
    """Put cases together whose names do not meet, since each run takes seconds."""
    found: list[tuple[list[Case], set[str]]] = []
    for case in cases:
        names = _own_names(case)
        fits = (one for one in found if len(one[0]) < MOST_AT_ONCE and not one[1] & names)
        members, taken = next(fits, ([], set()))
        if not members:
            found.append((members, taken))
        members.append(case)
        taken |= names
    return [members for members, _ in found]


def together(cases: list[Case]) -> str:
    """Make one cell of several cases."""
    codes = [case.code.replace("def run()", f"def run_{n}()") for n, case in enumerate(cases)]
    calls = "".join(f"    run_{n}()\n" for n in range(len(cases)))
    return HEAD + "\n".join([*codes, f"def run():\n{calls}"])


def _own_names(case: Case) -> set[str]:
    """Give the names that a case binds, and its holder: two of no name are hard to tell apart."""
    nodes = list(ast.walk(ast.parse(case.code)))
    found = {one.id for one in nodes if isinstance(one, ast.Name) and type(one.ctx) is ast.Store}
    found |= {one.name for one in nodes if isinstance(one, ast.ClassDef | ast.FunctionDef)}
    return (found | {f"state {case.state}" * (case.state != "live"), case.holder}) - {"run", ""}


PLAIN = """
import io, numpy as np
arrays, texts, files, by_name, numbers = [], [], [], {}, []
def run():
    arrays.append(np.ones((100, 100)))
    texts.extend(str(n) + "x" * 1000 for n in range(100))
    files.append(io.BytesIO(bytes(20_000)))
    by_name[len(by_name)] = {"rows": list(range(1000, 2000))}
    numbers.extend(range(1000, 1020))
"""
"""What the collector does not follow; numbers are a log, and no alarm."""

BULK = """
import array, collections, dataclasses, io
import numpy as np, pandas
@dataclasses.dataclass(slots=True)
class Log:
    text: str = ""
    data: bytes = b""
    rows: object = None
    by_run: dict = dataclasses.field(default_factory=dict)
class Trainer:
    seen = {}
    scores = np.zeros(0)
    def __repr__(self): raise RuntimeError("not to be run")
    def __sizeof__(self): raise RuntimeError("not to be run")
def counter():
    kept = np.zeros(0)
    def count():
        nonlocal kept
        kept = np.append(kept, np.ones(20_000))
    return count
rows, text, log, small = np.zeros(0), "", Log(rows=np.zeros(0)), ""
trainer, count, stream, raw = Trainer(), counter(), io.BytesIO(), bytearray()
trainer.history = types.SimpleNamespace(frames=[], table=pandas.DataFrame({"a": np.zeros(0)}))
trainer.metrics, trainer.parts = {"deep": {"array": np.zeros(0)}}, ()
trainer.numbers, trainer.objects = array.array("d"), np.empty(0, object)
crops, sizes = {}, iter([9, 4, 8, 3, 7, 2] * 2)
@functools.lru_cache(maxsize=None)
def table(n): return np.ones(20_000)
def run():
    global rows, text, some, small
    n = len(log.by_run)
    rows = np.concatenate([rows, np.ones(20_000)])
    text += "x" * 160_000
    small += "all is well"
    some = np.zeros(next(sizes) * 100_000)
    log.text += "x" * 160_000
    log.data += b"x" * 160_000
    log.rows = np.append(log.rows, np.ones(20_000))
    log.by_run[n] = np.ones(20_000)
    Trainer.seen[n] = np.ones(20_000)
    Trainer.scores = np.append(Trainer.scores, np.ones(20_000))
    trainer.history.frames.append(pandas.DataFrame({"a": np.ones(20_000)}))
    new = pandas.DataFrame({"a": np.ones(20_000)})
    trainer.history.table = pandas.concat([trainer.history.table, new], ignore_index=True)
    deep = trainer.metrics["deep"]
    deep["array"] = np.append(deep["array"], np.ones(20_000))
    trainer.parts += (np.ones(20_000),)
    trainer.numbers.extend([1.0] * 20_000)
    trainer.objects = np.append(trainer.objects, np.empty(1, object))
    trainer.objects[-1] = np.ones(20_000)
    crops[n] = np.ones((200, 100))[0]
    count(), table(n), stream.write(b"x" * 160_000), raw.extend(b"x" * 160_000)
"""
BULK_HOLDERS = {
    "rows": (160_000, "", "ndarray", ""),
    "text": (160_000, "", "str", ""),
    "log.text": (160_000, "", "str", ""),
    "log.data": (160_000, "", "bytes", ""),
    "log.rows": (160_000, "", "ndarray", ""),
    "log.by_run": (160_000, "dict", "ndarray", "log.by_run.clear()"),
    "Trainer.seen": (160_000, "dict", "ndarray", "Trainer.seen.clear()"),
    "Trainer.scores": (160_000, "", "ndarray", ""),
    "trainer.history.frames": (160_000, "list", "DataFrame", "trainer.history.frames.clear()"),
    "trainer.history.table": (160_000, "", "DataFrame", ""),
    "trainer.metrics['deep']['array']": (160_000, "", "ndarray", ""),
    "trainer.parts": (160_000, "tuple", "ndarray", ""),
    "trainer.numbers": (160_000, "", "array", "del trainer.numbers[:]"),
    "trainer.objects": (160_000, "", "ndarray", ""),
    "crops": (
        160_000,
        "dict",
        "ndarray",
        "crops.update({key: one.copy() for key, one in crops.items()})",
    ),
    "count, closure variable 'kept'": (160_000, "", "ndarray", ""),
    "table": (160_000, "lru_cache", "ndarray", "table.cache_clear()"),
    "stream": (160_000, "", "BytesIO", "stream.seek(0); stream.truncate()"),
    "raw": (160_000, "", "bytearray", "raw.clear()"),
}
"""By holder: the least bytes of each run, container, what it gets, and the line that lets go."""

BOUNDED = """
import collections, numpy as np
replay, recent = collections.deque(maxlen=10_000), types.SimpleNamespace()
recent.frames = collections.deque(maxlen=50)
@functools.lru_cache(maxsize=8)
def mask(n): return torch.ones(100)
def run():
    replay.extend({"state": torch.ones(100), "reward": 1.0} for _ in range(3))
    recent.frames.append(np.ones(75_000))
    mask(len(replay))
"""
