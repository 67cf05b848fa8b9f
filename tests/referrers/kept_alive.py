"""Ways in which an object stays alive, and what a good answer says of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Case:
    """A cell that leaves a weak reference `probe` to what it planted.

    Attributes:
        names: parts of the answer in this order: its verdict first, then one of its chains.
        edge: the kind of reference by which the nearest chain ends, "" where there is none.
        mends: how often a mend is needed; each breaks one chain.
        frees: the mends let the object go, at the latest with the next collection.
    """

    name: str
    code: str
    names: tuple[str, ...]
    edge: str
    complete: bool = True
    collectable: bool = False
    uncollectable: bool = False
    mends: int = 1
    frees: bool = True


TRAINING = [
    Case(
        name="losses gathered",
        code="""
layer, losses = nn.Linear(256, 256), []
for _ in range(3):
    hidden = layer(torch.randn(64, 256))
    losses.append((hidden * hidden).mean())
probe = weakref.ref(hidden)
del hidden
""",
        names=("losses[2]", "grad_fn MeanBackward0", "MulBackward0", "saved"),
        edge="saved_tensor",
    ),
    Case(
        name="a parameter that TorchScript alone holds",
        code="""
import io
file = io.BytesIO()
torch.jit.save(torch.jit.script(nn.Sequential(nn.Linear(64, 64))), file)
file.seek(0)
served = torch.jit.load(file)
probe = weakref.ref(getattr(served, "0").weight)
""",
        names=("served.0.weight",),
        edge="attribute",
    ),
    Case(
        name="outputs not detached",
        code="""
encoder, head, outputs = nn.Linear(32, 128), nn.Linear(128, 10), []
for _ in range(3):
    features = encoder(torch.randn(64, 32))
    outputs.append(head(features))
probe = weakref.ref(features)
del features
""",
        names=("outputs[2]", "AddmmBackward0", "saved"),
        edge="saved_tensor",
    ),
    Case(
        name="hidden state carried over",
        code="""
cell = nn.GRUCell(16, 64)
hidden = torch.zeros(8, 64)
first = torch.randn(8, 16)
for step in range(5):
    inputs = first if step == 0 else torch.randn(8, 16)
    hidden = cell(inputs, hidden)
probe = weakref.ref(first)
del first, inputs
""",
        names=("hidden", "grad_fn", "AddmmBackward0", "saved"),
        edge="saved_tensor",
    ),
    Case(
        name="graph retained, asked of the storage",
        code="""
activation = nn.Linear(64, 64)(torch.randn(8, 64)).relu()
loss = activation.sum()
loss.backward(retain_graph=True)
probe = weakref.ref(activation.untyped_storage())
del activation
""",
        names=("loss", "ReluBackward0", "saved"),
        edge="saved_tensor",
    ),
    Case(
        name="create_graph",
        code="""
weight = torch.randn(300, 300, requires_grad=True)
weight.tanh().sum().backward(create_graph=True)
probe = weakref.ref(weight)
del weight
""",
        names=("no collector frees", "cycle", "grad", "AccumulateGrad"),
        edge="variable",
        uncollectable=True,
    ),
    Case(
        name="a tensor left on ctx",
        code="""
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.extra = x.exp()
        return x * x
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.extra
squared = Square.apply(torch.randn(99, requires_grad=True))
loss = squared.sum()
loss.backward()
probe = weakref.ref(squared.grad_fn.extra)
del squared
""",
        names=("loss", "SquareBackward", "extra"),
        edge="attribute",
    ),
    Case(
        name="a gradient kept",
        code="""
model = nn.Linear(64, 64)
model(torch.randn(2, 64)).sum().backward()
probe = weakref.ref(model.weight.grad)
""",
        names=("model.weight", ".grad"),
        edge="grad",
    ),
    Case(
        name="a row of a table",
        code="table = torch.randn(99, 99)\nrow = table[0]\nprobe = weakref.ref(table)\ndel table",
        names=("row", "_base"),
        edge="base",
    ),
    Case(
        name="a hook that stores activations",
        code="""
def watch(model):
    activations = {}
    def save_output(_module, _inputs, output):
        activations["fc"] = output.detach()
    handle = model.register_forward_hook(save_output)
    model(torch.randn(4, 128))
    return weakref.ref(activations["fc"])
model = nn.Linear(128, 128)
probe = watch(model)
""",
        names=("hook save_output on model", "closure variable 'activations'", "['fc']"),
        edge="item",
    ),
    Case(
        name="an optimizer that outlives its model",
        code="""
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
probe = weakref.ref(model.weight)
del model
""",
        names=("optimizer.param_groups[0]['params'][0]",),
        edge="item",
    ),
    Case(
        name="Adam's averages",
        code="""
model = nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(2, 64)).sum().backward()
optimizer.step()
probe = weakref.ref(optimizer.state[model.weight]["exp_avg"])
""",
        names=("optimizer.state[model.weight]['exp_avg']",),
        edge="item",
    ),
    Case(
        name="lru_cache on a method",
        code="""
import functools
class Tokenizer:
    def __init__(self):
        self.table = torch.randn(500, 8)
    @functools.lru_cache(maxsize=64)
    def embed(self, token):
        return self.table[token].sum().item()
tokenizer = Tokenizer()
tokenizer.embed(3)
probe = weakref.ref(tokenizer.table)
del tokenizer
""",
        names=("Tokenizer.embed", "lru_cache of Tokenizer.embed", "table"),
        edge="attribute",
    ),
    Case(
        name="an error kept",
        code="""
def forward():
    global probe
    activations = torch.randn(500)
    probe = weakref.ref(activations)
    raise RuntimeError("out of memory (simulated)")
try:
    forward()
except RuntimeError as caught:
    error = caught
""",
        names=("error", "frame forward() cell.py:6", "variable activations"),
        edge="frame",
    ),
    Case(
        name="a generator at its yield",
        code="""
def read_batches():
    global probe
    chunk = torch.randn(500)
    probe = weakref.ref(chunk)
    yield chunk.mean().item()
    yield chunk.std().item()
batches = read_batches()
next(batches)
""",
        names=("batches", "generator read_batches()", "variable chunk"),
        edge="generator",
    ),
    Case(
        name="a cycle in Python",
        code="""
import gc
class Trainer:
    def __init__(self):
        self.weights = torch.randn(150)
        self.callback = self.report
    def report(self):
        return self.weights.mean().item()
probe = weakref.ref(Trainer().weights)
""",
        names=("Only a cycle", "gc.collect()", "cycle of Trainer", "weights"),
        edge="attribute",
        collectable=True,
    ),
    Case(
        name="an argument bound in",
        code="""
import functools
weight = torch.rand(50)
criterion = functools.partial(nn.functional.cross_entropy, weight=weight)
probe = weakref.ref(weight)
del weight
""",
        names=("criterion.keywords['weight']",),
        edge="item",
    ),
    Case(
        name="a NumPy array, asked of the storage",
        code="""
tensor = torch.randn(1000, 1000)
array = tensor.numpy()
probe = weakref.ref(tensor.untyped_storage())
del tensor
""",
        names=("array",),
        edge="ndarray",
    ),
]

H = "h = torch.ones(64, 256)\nprobe = weakref.ref(h)\n"
FAIL = """
def fail():
    global probe
    inside = torch.ones(10)
    probe = weakref.ref(inside)
    raise ValueError(1)
"""
PYTHON = [
    Case(name="a variable", code=H, names=("h",), edge="item"),
    Case(name="a list", code=H + "a = [0, h]\ndel h", names=("a[1]",), edge="item"),
    Case(name="a tuple", code=H + "a = 0, (1, h)\ndel h", names=("a[1][1]",), edge="item"),
    Case(name="a dict", code=H + "cache = {'k': h}\ndel h", names=("cache['k']",), edge="item"),
    Case(name="a key", code=H + "seen = {h: 1}\ndel h", names=("seen, a key",), edge="item"),
    Case(name="a set", code=H + "seen = {h}\ndel h", names=("seen, an element",), edge="item"),
    Case(
        name="a deque",
        code=H + "import collections\nqueue = collections.deque([h, 1])\ndel h",
        names=("queue[0]",),
        edge="item",
    ),
    Case(
        name="a deque of losses",
        code="""
import collections
w, losses = torch.ones(8, requires_grad=True), collections.deque(maxlen=9)
for _ in range(3):
    hidden = w * 2
    losses.append((hidden * hidden).sum())
probe = weakref.ref(hidden)
del hidden
""",
        names=("losses[2]", "MulBackward0", "saved"),
        edge="saved_tensor",
    ),
    Case(
        name="losses among other things",
        code="""
w = torch.ones(8, requires_grad=True)
hidden = w * 2
losses = [0.5, None, (hidden * hidden).sum()]
probe = weakref.ref(hidden)
del hidden
""",
        names=("losses[2]", "MulBackward0", "saved"),
        edge="saved_tensor",
    ),
    Case(
        name="losses by name",
        code="""
w = torch.ones(8, requires_grad=True)
hidden = w * 2
log = {"step": 1, "loss": (hidden * hidden).sum()}
probe = weakref.ref(hidden)
del hidden
""",
        names=("log['loss']", "MulBackward0", "saved"),
        edge="saved_tensor",
    ),
    Case(
        name="a named tuple",
        code=H + "import typing\nclass Pair(typing.NamedTuple):\n    x: object\n    y: int\n"
        "pair = Pair(h, 1)\ndel h",
        names=("pair.x",),
        edge="attribute",
    ),
    Case(
        name="an array of objects",
        code=H + "import numpy\narray = numpy.empty((2, 2), object)\narray[1, 0] = [h]\ndel h",
        names=("array[1, 0][0]",),
        edge="item",
    ),
    Case(
        name="a field of an array of records",
        code=H
        + """
import numpy
array = numpy.zeros(3, [("step", "i8"), ("kept", [("loss", "O"), ("name", "O")])])
array["kept"]["loss"][1] = [h]
del h
""",
        names=("array['kept']['loss'][1][0]",),
        edge="item",
    ),
    Case(
        name="an array that is one object",
        code=H + "import numpy\narray = numpy.empty((), object)\narray[()] = [h]\ndel h",
        names=("array[()][0]",),
        edge="item",
    ),
    Case(
        name="a context variable",
        code=H + "import contextvars\nbatch = contextvars.ContextVar('b')\nbatch.set(h)\ndel h",
        names=("batch.get()",),
        edge="item",
    ),
    Case(
        name="a thread's own",
        code=H + "import threading\nown = threading.local()\nown.batch = h\ndel h",
        names=("own.batch",),
        edge="attribute",
    ),
    Case(
        name="iterators of iterators",
        code=H + "import itertools\nsteps = enumerate(zip(itertools.cycle([h]), range(3)))\ndel h",
        names=("steps, an element",),
        edge="item",
    ),
    Case(
        name="a proxy of a dictionary",
        code=H + "import types\nshown = types.MappingProxyType({'h': [h]})\ndel h",
        names=("shown['h'][0]",),
        edge="item",
    ),
    Case(
        name="a function that is a class's own",
        code=H + "class Tools:\n    @staticmethod\n    def scale(x, by=h): pass\n    @property\n"
        "    def mean(self, of=h): pass\ndel h",
        names=("Tools.scale, default argument 'by'",),
        edge="item",
        mends=2,
    ),
    Case(
        name="a method of a list",
        code=H + "add = [h].append\ndel h",
        names=("add.__self__[0]",),
        edge="item",
    ),
    Case(
        name="a finalizer",
        code=H + "class A: pass\na = A()\nend = weakref.finalize(a, id, h)\ndel h",
        names=("weakref.finalize._registry", "args[0]"),
        edge="item",
    ),
    Case(
        name="a finalizer without a name",
        code=H + "class A: pass\na = A()\nweakref.finalize(a, id, h)\ndel h",
        names=("weakref.finalize._registry", "args[0]"),
        edge="item",
        frees=False,  # nobody takes Python's own registry away
    ),
    Case(
        name="a task of asyncio",
        code="""
import asyncio
async def fetch():
    global probe
    data = torch.ones(60)
    probe = weakref.ref(data)
    await asyncio.sleep(60)
async def once():
    global task
    task = asyncio.ensure_future(fetch())
    await asyncio.sleep(0)
loop = asyncio.new_event_loop()
loop.run_until_complete(once())
""",
        names=("task", "coroutine fetch()", "variable data"),
        edge="generator",
        frees=False,  # until the loop runs again
    ),
    Case(
        name="an attribute",
        code=H + "class Trial: pass\ntrial = Trial()\ntrial.best = h\ndel h",
        names=("trial.best",),
        edge="attribute",
    ),
    Case(
        name="a slot",
        code=H + "class Trial: __slots__ = ['best']\ntrial = Trial()\ntrial.best = h\ndel h",
        names=("trial.best",),
        edge="attribute",
    ),
    Case(
        name="an attribute of a class",
        code=H + "class Run: best = h\ndel h",
        names=("Run.best",),
        edge="attribute",
    ),
    Case(
        name="a global name of a module",
        code=H + "import colorsys\ncolorsys.best = h\ndel h",
        names=("colorsys.best",),
        edge="attribute",
    ),
    Case(
        name="a closure",
        code="""
def make():
    global probe
    buf = torch.ones(10)
    probe = weakref.ref(buf)
    return lambda: buf
call = make()
""",
        names=("call", "closure variable 'buf'"),
        edge="cell",
    ),
    Case(
        name="a default",
        code=H + "def f(x, y=h): pass\ndel h",
        names=("f, default argument 'y'",),
        edge="item",
    ),
    Case(
        name="a default by keyword",
        code=H + "def f(x, *, y=h): pass\ndel h",
        names=("f, default argument 'y'",),
        edge="item",
    ),
    Case(
        name="a positional argument bound in",
        code=H + "import functools\nf = functools.partial(print, h)\ndel h",
        names=("f.args[0]",),
        edge="item",
    ),
    Case(
        name="a bound method",
        code="""
class Model:
    def __init__(self): self.w = torch.ones(10)
    def call(self): pass
call = Model().call
probe = weakref.ref(call.__self__.w)
""",
        names=("call.__self__.w",),
        edge="attribute",
    ),
    Case(
        name="a coroutine",
        code="""
class Pause:
    def __await__(self):
        yield 1
async def fetch():
    global probe
    data = torch.ones(60)
    probe = weakref.ref(data)
    await Pause()
waiting = fetch()
waiting.send(None)
""",
        names=("waiting", "coroutine fetch()", "variable data"),
        edge="generator",
    ),
    Case(
        name="the frame of another thread",
        code="""
import threading, time
begun = threading.Event()
def work():
    global probe
    batch = torch.ones(10)
    probe = weakref.ref(batch)
    begun.set()
    time.sleep(9)
threading.Thread(target=work, name="loader", daemon=True).start()
begun.wait()
""",
        names=("frame work() cell.py:9 of thread loader", "variable batch"),
        edge="frame",
        frees=False,
    ),
    Case(
        name="a chained error",
        code=FAIL
        + """
try:
    try:
        fail()
    except ValueError as first:
        raise KeyError(2) from first
except KeyError as second:
    kept = second
""",
        names=("kept", "frame fail()", "variable inside"),
        edge="frame",
        mends=3,
    ),
    Case(
        name="an error in a group",
        code=FAIL
        + """
try:
    fail()
except ValueError as first:
    group = ExceptionGroup("g", [first])
""",
        names=("group", "frame fail()", "variable inside"),
        edge="frame",
        mends=3,
    ),
    Case(
        name="an argument of an error",
        code=H + "error = ValueError('bad', h)\ndel h",
        names=("error", "args[1]"),
        edge="item",
    ),
    Case(
        name="the last error",
        code=FAIL
        + """
import sys
try:
    fail()
except ValueError as first:
    sys.last_value, sys.last_traceback = first, first.__traceback__
""",
        names=("sys.last_", "frame fail()", "variable inside"),
        edge="frame",
        mends=3,
    ),
    Case(
        name="the last error's value alone",
        code=FAIL
        + """
import sys
try:
    fail()
except ValueError as first:
    sys.last_value = first
""",
        names=("sys.last_value", "frame fail()", "variable inside"),
        edge="frame",
    ),
    Case(
        name="a list of 200,000",
        code=H + "many = [None] * 199_999 + [h]\ndel h",
        names=("many[199999]",),
        edge="item",
    ),
    Case(
        name="a plain object in a list",
        code="class L(list): pass\nouter = [L([1, 2])]\nprobe = weakref.ref(outer[0])",
        names=("outer[0]",),
        edge="item",
    ),
    Case(
        name="an instance",
        code="class A: pass\na = A()\na.b = A()\nprobe = weakref.ref(a.b)",
        names=("a.b",),
        edge="attribute",
    ),
    Case(
        name="a layer of a model",
        code="model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())\nprobe = weakref.ref(model[0])",
        names=("model.0",),
        edge="item",
    ),
]
TORCH = [
    Case(
        name="a view of a view",
        code=H + "view = h[:10][:, :5]\ndel h",
        names=("view", "_base"),
        edge="base",
    ),
    Case(
        name="a part of a NumPy array",
        code="""
h = torch.ones(64, 256)
probe = weakref.ref(h.untyped_storage())
part = h.numpy()[:3]
del h
""",
        names=("part",),
        edge="ndarray",
    ),
    Case(
        name="two parts of a NumPy array",
        code="""
h = torch.ones(64, 256)
probe = weakref.ref(h.untyped_storage())
one, two = (lambda whole: (whole[:3], whole[3:]))(h.numpy())
del h
""",
        names=("one", "the array's tensor"),
        edge="ndarray",
        mends=2,
    ),
    Case(
        name="a memory view",
        code="""
h = torch.ones(64)
probe = weakref.ref(h.untyped_storage())
view = memoryview(h.numpy())
del h
""",
        names=("view",),
        edge="ndarray",
    ),
    Case(
        name="the values of a sparse tensor, asked of the storage",
        code="""
values = torch.ones(2)
probe = weakref.ref(values.untyped_storage())
sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), values, (2, 2))
del values
""",
        names=("sparse",),
        edge="item",
    ),
    Case(
        name="save_for_backward",
        code="""
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2
x = torch.ones(10, requires_grad=True) * 1
probe = weakref.ref(x)
loss = Twice.apply(x).sum()
del x
""",
        names=("loss", "TwiceBackward", "saved"),
        edge="saved_tensor",
    ),
    Case(
        name="a view of its own output on ctx",
        code="""
class Loop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad
y = Loop.apply(torch.ones(10, requires_grad=True))
y.grad_fn.view = y[:5]
probe = weakref.ref(y)
del y
""",
        names=("no collector frees", "cycle", "view", "_base"),
        edge="base",
        uncollectable=True,
    ),
    Case(
        name="the leaf of a graph",
        code="w = torch.ones(9, requires_grad=True)\nprobe = weakref.ref(w)\nloss = w.sum()\ndel w",
        names=("loss", "grad_fn SumBackward0", "AccumulateGrad", "variable"),
        edge="variable",
    ),
    Case(
        name="a hook on a tensor",
        code=H + "w = torch.ones(3, requires_grad=True)\n"
        "w.register_hook(lambda g, h=h: None)\ndel h",
        names=("hook <lambda> on w", "default argument"),
        edge="item",
    ),
    Case(
        name="a hook before forward",
        code=H + "model = nn.Linear(2, 2)\n"
        "model.register_forward_pre_hook(lambda m, i, h=h: None)\ndel h",
        names=("hook <lambda> on model", "default argument"),
        edge="item",
    ),
    Case(
        name="a hook in backward",
        code=H + "model = nn.Linear(2, 2)\n"
        "model.register_full_backward_hook(lambda m, i, o, h=h: None)\ndel h",
        names=("hook <lambda> on model", "default argument"),
        edge="item",
    ),
    Case(
        name="a hook that is a partial",
        code=H
        + """
import functools
def save(h, m, i, o): pass
model = nn.Linear(2, 2)
model.register_forward_hook(functools.partial(save, h))
del h
""",
        names=("hook save on model", "args[0]"),
        edge="item",
    ),
    Case(
        name="the gradient of a tensor that retains it",
        code="""
x = torch.ones(10, requires_grad=True)
y = x * 2
y.retain_grad()
y.sum().backward()
probe = weakref.ref(y.grad)
""",
        names=("y", ".grad"),
        edge="grad",
    ),
    Case(
        name="DLPack",
        code="h = torch.ones(64)\nprobe = weakref.ref(h)\n"
        "capsule = torch.utils.dlpack.to_dlpack(h)\ndel h",
        names=("C++ reference",),
        edge="",
        complete=False,
        frees=False,
    ),
    Case(
        name="TorchScript",
        code="""
h = torch.ones(3)
graph = torch.jit.trace(lambda x: x + h, torch.ones(3))
probe = weakref.ref(h)
del h
""",
        names=("C++ reference",),
        edge="",
        complete=False,
        frees=False,
    ),
]


def _placed(name: str, code: str, label: str, edge: str = "item", imports: str = "") -> Case:
    """A tensor `h` that one line puts somewhere; one mend lets it go."""
    lines = f"import {imports}\n{H}{code}\ndel h" if imports else f"{H}{code}\ndel h"
    return Case(name=name, code=lines, names=(label,), edge=edge)


PLACES = [
    _placed("a tuple as a key", "d = {('a', 1): [h]}", "d[('a', 1)][0]"),
    _placed("a tuple of one as a key", "d = {(1,): h}", "d[(1,)]"),
    _placed("a number below zero as a key", "d = {-1: {2.5: h}}", "d[-1][2.5]"),
    _placed("quotes in a key", """d = {"it's": {'a"b': h}}""", """d["it's"]['a"b']"""),
    _placed("a dtype as a key", "d = {torch.float32: [h]}", "d[torch.float32][0]"),
    _placed("a device as a key", "d = {torch.device('cpu'): h}", "d[torch.device('cpu')]"),
    _placed(
        "a class as a key",
        "d = {int: {Weak: h}}",
        "d[int][Weak]",
        imports="weakref as w\nWeak = w.ref",
    ),
    _placed(
        "an enum's member as a key",
        "M = enum.Enum('M', 'A'); d = {M.A: h}",
        "d[M.A]",
        imports="enum",
    ),
    _placed("a model as a key", "model = nn.ReLU(); d = {model: {'mean': h}}", "d[model]['mean']"),
    _placed(
        "what is an element's own",
        "o = nn.ReLU(); o.h = h; s = {o}; del o",
        "list(s)[0].h",
        "attribute",
    ),
    _placed(
        "a class that only an instance names",
        "a = type('A', (), {'h': h})()",
        "type(a).h",
        "attribute",
    ),
    _placed(
        "a method's partial argument",
        "class A: f = functools.partialmethod(print, h)",
        "A.__dict__['f'].args[0]",
        imports="functools",
    ),
    _placed(
        "a registry of types",
        "f = functools.singledispatch(print); f.register(int, lambda x, h=h: h)",
        "f.registry[int], default argument 'h'",
        imports="functools",
    ),
    _placed(
        "a function's annotation",
        "def f(x): pass\nf.__annotations__ = {'x': h}",
        "f.__annotations__['x']",
    ),
    _placed(
        "a frozen dataclass",
        "S = dataclasses.make_dataclass('S', ['h'], frozen=True); s = S(h)",
        "s.h",
        "attribute",
        imports="dataclasses",
    ),
    _placed(
        "a frozen dataclass with slots",
        "S = dataclasses.make_dataclass('S', ['h'], frozen=True, slots=True); s = [S(h)]",
        "s[0].h",
        "attribute",
        imports="dataclasses",
    ),
    _placed(
        "a property's closure",
        "P = (lambda h: type('P', (), {'p': property(lambda s: h)}))(h)",
        "P.p",
        "cell",
    ),
    _placed(
        "a callback of a weak reference",
        "o = nn.ReLU(); r = weakref.ref(o, lambda _, h=h: h)",
        "r.__callback__, default argument 'h'",
    ),
    _placed(
        "two places under one name", "class A: pass\na = A(); a.x = h; a.y = [h]", "a.", "attribute"
    ),
    _placed(
        "weights of a recurrent layer",
        "rnn = nn.LSTM(2, 2); rnn.weight_ih_l0 = nn.Parameter(h); "
        "h = rnn.weight_ih_l0; probe = weakref.ref(h)",
        "rnn.weight_ih_l0",
    ),
    _placed(
        "a list that a layer of a model has",
        "net = nn.Sequential(nn.ReLU()); net[0].seen = [h]",
        "net.0.seen[0]",
    ),
    _placed(
        "an iterator's twin",
        "a, b = itertools.tee([h]); next(a); del a",
        "b, an element",
        imports="itertools",
    ),
    _placed("a queue in C", "q = queue.SimpleQueue(); q.put(h)", "q, an element", imports="queue"),
    _placed("a queue", "q = queue.Queue(); q.put((1, h))", "q.queue[0][1]", imports="queue"),
    _placed("a view of a dictionary", "v = {'a': h}.values()", "v.mapping['a']"),
    _placed(
        "a context variable's token",
        "v = contextvars.ContextVar('v'); v.set(h); t = v.set(1)",
        "t.old_value",
        "attribute",
        imports="contextvars",
    ),
    _placed(
        "a context that was kept",
        "v = contextvars.ContextVar('v'); t = v.set(h); "
        "c = contextvars.copy_context(); v.reset(t); del t",
        "c[v]",
        imports="contextvars",
    ),
    _placed(
        "a thread's result",
        "pool = futures.ThreadPoolExecutor(1); f = pool.submit(h.view_as, h); "
        "h = f.result(); probe = weakref.ref(h); pool.shutdown(); del pool",
        "f.result()",
        "attribute",
        imports="concurrent.futures as futures",
    ),
    _placed(
        "a task's result",
        "async def get(h): return h\nloop = asyncio.new_event_loop()\n"
        "t = loop.create_task(get(h)); loop.run_until_complete(t)",
        "t.result()",
        "attribute",
        imports="asyncio",
    ),
    _placed(
        "a callback of a future",
        "f = asyncio.new_event_loop().create_future(); "
        "f.add_done_callback(functools.partial(print, h))",
        "f._callbacks[0][0].args[0]",
        imports="asyncio, functools",
    ),
    _placed(
        "a record that a log handler keeps",
        "from logging.handlers import MemoryHandler\n"
        "log = logging.getLogger('kept'); log.propagate = False; log.addHandler(MemoryHandler(9)); "
        "log.warning('%s', h); del log",
        "logging.getLogger('kept').handlers[0].buffer[0].args[0]",
        imports="logging",
    ),
]
ARRAYS = [
    Case(
        name="an array in a dictionary that gc does not track",
        code="h = torch.ones(9)\nprobe = weakref.ref(h.untyped_storage())\n"
        "d = {'a': {'b': h.numpy()}}\ndel h",
        names=("d['a']['b']", "the array's tensor"),
        edge="ndarray",
    ),
    Case(
        name="an array itself",
        code="import numpy\nh = numpy.ones(9)\nprobe = weakref.ref(h)\nd = [{'x': h, 'y': 1}]\ndel h",
        names=("d[0]['x']",),
        edge="item",
    ),
    Case(
        name="an array of which a part is left",
        code="import numpy\nh = numpy.ones(9)\nprobe = weakref.ref(h)\npart = h[2:]\ndel h",
        names=("part", ".base"),
        edge="ndarray",
    ),
]
ARRAYS += [
    Case(
        name=f"an array that a tensor was made over, by {what}",
        code=f"import numpy\nh = numpy.ones(9)\nprobe = weakref.ref(h)\n{code}\ndel h",
        names=(name, "the tensor's"),
        edge="ndarray",
    )
    for what, code, name in (
        ("from_numpy", "t = torch.from_numpy(h)", "t"),
        ("as_tensor", "t = [torch.as_tensor(h)]", "t[0]"),
        ("asarray", "net = nn.ReLU(); net.register_buffer('b', torch.asarray(h))", "net.b"),
        ("frombuffer", "t = torch.frombuffer(memoryview(h), dtype=torch.float64)", "t"),
    )
]
LIBRARIES = [
    _placed(
        "a call that an executor has not begun",
        "pool = futures.ThreadPoolExecutor(1)\npool.submit(time.sleep, 5); pool.submit(print, h)",
        "pool._work_queue, an element.args[0]",
        imports="time, concurrent.futures as futures",
    ),
    _placed(
        "a dictionary that is a future's result",
        "f = asyncio.new_event_loop().create_future(); f.set_result({'k': h})",
        "f.result()['k']",
        imports="asyncio",
    ),
    _placed(
        "a dictionary with weak keys",
        "class A: pass\na = A(); a.seen = weakref.WeakKeyDictionary(); a.seen[a] = [h]",
        "a.seen[a][0]",
    ),
    _placed(
        "a dictionary with weak tensors as keys",
        "w = torch.ones(2); seen = WeakTensorKeyDictionary(); seen[w] = h",
        "seen[w]",
        imports="torch.utils.weak\nfrom torch.utils.weak import WeakTensorKeyDictionary",
    ),
    _placed(
        "a tensor as a weak key, by which none can look",
        "w = torch.ones(2); seen = weakref.WeakKeyDictionary(); seen[w] = h",
        "seen[<w>]",
    ),
    _placed(
        "a module made while running",
        "sys.modules['made'] = types.ModuleType('made'); sys.modules['made'].cache = {'k': h}",
        "made.cache['k']",
        imports="sys, types",
    ),
    _placed(
        "another thread's own",
        "own, box, done, go = threading.local(), [h], threading.Event(), threading.Event()\n"
        "def work():\n    own.h = box.pop(); done.set(); go.wait(60)\n"
        "threading.Thread(target=work, daemon=True).start(); done.wait()",
        "own.h",
        "attribute",
        imports="threading",
    ),
    _placed(
        "several errors kept",
        "def fail(h): raise KeyError\nerrors = []\nfor _ in range(3):\n"
        "    try: fail(h)\n    except KeyError as error: errors.append(error)",
        "errors[2] -> frame fail() cell.py:4 -> variable h",
        "frame",
        imports="sys",
    ),
    Case(
        name="a function of torch.func",
        code=H + "_, pull = torch.func.vjp(h.mul, torch.ones(64, 256))\ndel h",
        names=("pull -> closure variable", "grad_fn MulBackward0", "the wrapped tensor"),
        edge="other",
    ),
]
GRAPH = "y = torch.ones(2, requires_grad=True) * 2\n"
FUNCTION = """
class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 1
    @staticmethod
    def backward(ctx, grad): return grad
y = Same.apply(torch.ones(2, requires_grad=True))
"""
LINEAR = "model = nn.Sequential(nn.Linear(2, 2))\n"
OPTIMIZER = "optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], 0.1)\n"
HOOKS_OF_TORCH = {
    "a node": (
        GRAPH + "y.grad_fn.register_hook(lambda a, b, h=h: None); loss = y.sum(); del y",
        "loss -> grad_fn SumBackward0 -> MulBackward0 -> hook <lambda> on MulBackward0",
    ),
    "before a node": (
        GRAPH + "y.grad_fn.register_prehook(lambda a, h=h: None)",
        "y -> grad_fn MulBackward0 -> hook <lambda> on grad_fn MulBackward0",
    ),
    "one of many graphs' nodes": (
        (
            "losses = []\nfor n in range(3):\n    y = torch.ones(2, requires_grad=True) * 2\n"
            "    if n == 1: y.grad_fn.register_hook(lambda a, b, h=h: None)\n"
            "    losses.append(y.sum())\ndel y"
        ),
        "losses[1] -> grad_fn SumBackward0 -> MulBackward0 -> hook <lambda> on MulBackward0",
    ),
    "a tensor that is gone": (
        GRAPH + "y.register_hook(lambda g, h=h: None); loss = y.sum(); del y",
        "loss -> grad_fn SumBackward0 -> hook <lambda> on a tensor behind grad_fn SumBackward0",
    ),
    "a node alone": (
        GRAPH + "y.grad_fn.register_hook(lambda a, b, h=h: None); n = y.grad_fn; del y",
        "n -> hook <lambda> on n, default argument 'h'",
    ),
    "a node of a function of the user's": (
        FUNCTION + "y.grad_fn.register_hook(lambda a, b, h=h: None); loss = y.sum(); del y",
        "loss -> grad_fn SumBackward0 -> SameBackward -> hook <lambda> on SameBackward",
    ),
    "the node of a leaf": (
        (
            "w = torch.ones(2, requires_grad=True); loss = (w * 2).sum()\n"
            "node = loss.grad_fn.next_functions[0][0].next_functions[0][0]\n"
            "node.register_prehook(lambda a, h=h: None); del node"
        ),
        "AccumulateGrad -> hook <lambda> on AccumulateGrad",
    ),
    "a module's backward pass": (
        LINEAR + "model.register_full_backward_hook(lambda m, i, o, h=h: None)\n"
        "out = model(torch.ones(1, 2, requires_grad=True)); del model",
        "out -> grad_fn BackwardHookFunctionBackward -> hook hook on grad_fn",
    ),
    "several tensors": (
        (
            "a, b = (n * torch.ones(2, requires_grad=True) for n in range(2))\n"
            "torch.autograd.graph.register_multi_grad_hook((a, b), lambda gs, h=h: None)\n"
            "loss = (a + b).sum(); del a, b"
        ),
        "loss -> grad_fn SumBackward0 -> hook inner_hook on a tensor behind grad_fn SumBackward0",
    ),
    "any of several tensors": (
        (
            "a = torch.ones(2, requires_grad=True)\n"
            "torch.autograd.graph.register_multi_grad_hook((a,), lambda g, h=h: None, mode='any')"
        ),
        "a._backward_hooks -> hook <lambda> on a",
    ),
    "a gradient that was added": (
        LINEAR + "model[0].weight.register_post_accumulate_grad_hook(lambda p, h=h: None)",
        "model.0.weight._post_accumulate_grad_hooks -> hook <lambda> on model.0.weight",
    ),
    "unpacking": (
        (
            "with torch.autograd.graph.saved_tensors_hooks(lambda t: 1, lambda _, h=h: h):\n"
            "    loss = torch.ones(2, requires_grad=True).exp().sum()"
        ),
        "loss -> grad_fn SumBackward0 -> ExpBackward0 -> unpack hook, default argument 'h'",
    ),
    "keyword arguments": (
        LINEAR + "model[0].register_forward_hook(lambda m, i, k, o, h=h: None, with_kwargs=True)",
        "model.0._forward_hooks -> hook <lambda> on model.0",
    ),
    "a module's state": (
        LINEAR + "model.register_state_dict_post_hook(lambda m, s, p, l, h=h: None)",
        "model._state_dict_hooks -> hook <lambda> on model",
    ),
    "loading a module's state": (
        LINEAR + "model.register_load_state_dict_pre_hook(lambda *a, h=h: None)",
        "model._load_state_dict_pre_hooks -> hook _WrappedHook on model",
    ),
    "an optimizer's step": (
        OPTIMIZER + "optimizer.register_step_post_hook(lambda o, a, k, h=h: None)",
        "optimizer._optimizer_step_post_hooks -> hook <lambda> on optimizer",
    ),
    "an optimizer's state": (
        OPTIMIZER + "optimizer.register_load_state_dict_pre_hook(lambda o, s, h=h: None)",
        "optimizer._optimizer_load_state_dict_pre_hooks -> hook <lambda> on optimizer",
    ),
    "all optimizers": (
        (
            "from torch.optim.optimizer import register_optimizer_step_post_hook as register\n"
            "register(lambda o, a, k, h=h: None)"
        ),
        "torch.optim.optimizer._global_optimizer_post_hooks -> hook <lambda> on torch.optim",
    ),
    "all modules": (
        "nn.modules.module.register_module_forward_hook(lambda m, i, o, h=h: None)",
        "torch.nn.modules.module._global_forward_hooks -> hook <lambda> on torch.nn.modules",
    ),
    "all parameters": (
        "nn.modules.module.register_module_parameter_registration_hook(lambda m, n, p, h=h: None)",
        "torch.nn.modules.module._global_parameter_registration_hooks -> hook <lambda> on torch.nn",
    ),
}
HOOKS = [
    _placed(f"a hook on {what}", code, label) for what, (code, label) in HOOKS_OF_TORCH.items()
]
CASES = [*TRAINING, *PYTHON, *PLACES, *ARRAYS, *LIBRARIES, *HOOKS, *TORCH]
