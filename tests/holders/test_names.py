"""Holders in plain Python: each tensor under the name that the user would write."""

from __future__ import annotations

import pytest
from planting import Planted, Planter, check


def variables(sizes: dict[str, int]) -> dict[tuple[str, str], int]:
    return {("VARIABLE", owner): 4 * n for owner, n in sizes.items()}


CASES = [
    Planted(
        "nested containers",
        """
import torch
cache = {
    "k": [torch.ones(10), {"b": (torch.ones(20),)}],
    ("x", 1): torch.ones(30), 5: torch.ones(40), 2.5: {3: torch.ones(60)},
    None: torch.ones(70), True: torch.ones(80), b"raw": torch.ones(90), object(): torch.ones(50),
    'quote"s': torch.ones(100), "new\\nline": torch.ones(110), "z" * 200: torch.ones(120),
}
""",
        variables(
            {
                "cache['k'][0]": 10,
                "cache['k'][1]['b'][0]": 20,
                "cache[('x', 1)]": 30,
                "cache[5]": 40,
                "cache[2.5][3]": 60,
                "cache[None]": 70,
                "cache[True]": 80,
                "cache[b'raw']": 90,
                "cache[<object>]": 50,
                "cache['quote\"s']": 100,
                "cache['new\\nline']": 110,
                "cache['" + "z" * 58 + "…]": 120,
            }
        ),
    ),
    Planted(
        "standard containers",
        """
import collections, dataclasses, types, queue, torch
@dataclasses.dataclass(slots=True)
class Point:
    t: object
point = Point(torch.ones(10))
Pair = collections.namedtuple("Pair", "first second")
pair = Pair(1, torch.ones(20))
recent = collections.deque([1, torch.ones(30)], maxlen=5)
bag, frozen = {torch.ones(40)}, frozenset([torch.ones(50)])
ordered = collections.OrderedDict(k=torch.ones(60))
lists = collections.defaultdict(list)
lists["k"].append(torch.ones(70))
read_only = types.MappingProxyType({"k": torch.ones(80)})
space = types.SimpleNamespace(a=torch.ones(90))
chain = collections.ChainMap({"z": torch.ones(100)})
user_dict, user_list = collections.UserDict(q=torch.ones(110)), collections.UserList([torch.ones(120)])
waiting = queue.Queue()
waiting.put(torch.ones(130))
ring = [torch.ones(140)]
ring.append(ring)
""",
        variables(
            {
                "point.t": 10,
                "pair.second": 20,
                "recent[1]": 30,
                "bag, an element": 40,
                "frozen, an element": 50,
                "ordered['k']": 60,
                "lists['k'][0]": 70,
                "read_only['k']": 80,
                "space.a": 90,
                "chain.maps[0]['z']": 100,
                "user_dict.data['q']": 110,
                "user_list.data[0]": 120,
                "waiting.queue[0]": 130,
                "ring[0]": 140,
            }
        ),
    ),
    Planted(
        "attributes",
        """
import torch
class Plain:
    shared = torch.ones(10)
    def __init__(self):
        self.own, self.__hidden = torch.ones(20), torch.ones(30)
class Slotted:
    __slots__ = ("_s", "__dict__")
class Meta(type):
    of_all = torch.ones(60)
class WithMeta(metaclass=Meta):
    pass
def make():
    class Base:
        table = [torch.ones(70)]
    class Child(Base):
        rows = torch.ones(80)
    return Child()
plain, slotted, local = Plain(), Slotted(), make()
slotted._s, slotted.d = torch.ones(40), torch.ones(50)
""",
        variables(
            {
                "Plain.shared": 10,
                "plain.own": 20,
                "plain._Plain__hidden": 30,
                "slotted._s": 40,
                "slotted.d": 50,
                "Meta.of_all": 60,
                "type(local).table[0]": 70,
                "type(local).rows": 80,
            }
        ),
    ),
    Planted(
        "an old class of a cell that ran again",
        """
import torch
class Net:
    table = torch.ones(10)
old = Net()
class Net:
    pass
""",
        variables({"type(old).table": 10}),
    ),
    Planted(
        "functions",
        """
import functools, torch
def f(x=torch.ones(10), *, y=torch.ones(20)):
    pass
f.note = torch.ones(30)
def outer():
    t = torch.ones(40)
    def inner():
        return t
    return inner
held_by_cell = outer()
bound = functools.partial(print, torch.ones(50), end=torch.ones(60))
class Keeper:
    def __init__(self):
        self.t = torch.ones(70)
    def method(self):
        pass
    @staticmethod
    def static(x=torch.ones(80)):
        pass
    @functools.cached_property
    def once(self):
        return torch.ones(90)
method, keeper = Keeper().method, Keeper()
keeper.t = None
keeper.once
""",
        variables(
            {
                "f, default argument 'x'": 10,
                "f, default argument 'y'": 20,
                "f.note": 30,
                "held_by_cell, closure variable 't'": 40,
                "bound.args[0]": 50,
                "bound.keywords['end']": 60,
                "method.__self__.t": 70,
                "Keeper.static, default argument 'x'": 80,
                "keeper.once": 90,
            }
        ),
    ),
    Planted(
        "caches",
        """
import functools, torch
@functools.lru_cache
def lookup(n):
    return torch.ones(n)
lookup(10)
@functools.cache
def size(t):
    return t.numel()
size(torch.ones(20))
class Tokenizer:
    def __init__(self):
        self.table = torch.ones(30)
    @functools.lru_cache
    def embed(self, n):
        return n
Tokenizer().embed(1)
""",
        variables(
            {
                "lru_cache of lookup, result": 10,
                "lru_cache of size, key[0]": 20,
                "lru_cache of Tokenizer.embed, key[0].table": 30,
            }
        ),
        also={"lru_cache of lookup, result": "10 float32"},
    ),
    Planted(
        "another module's globals",
        """
import sys, types, torch
sys.modules["planted_module"] = types.ModuleType("planted_module")
sys.modules["planted_module"].table = torch.ones(10)
sys.modules["planted_module"].cache = {"k": torch.ones(20)}
sys.modules["planted_module"].__file__ = 7
answer = nbinspect.gpumem()
del sys.modules["planted_module"]
""",
        variables({"planted_module.table": 10, "planted_module.cache['k']": 20}),
    ),
    Planted(
        "weak references hold nothing",
        """
import weakref, torch
class Key:
    pass
seen = torch.ones(10)
ref = weakref.ref(torch.ones(20))
values = weakref.WeakValueDictionary(gone=torch.ones(30), seen=seen)
key = Key()
table = weakref.WeakKeyDictionary({key: torch.ones(40)})
lost = weakref.WeakKeyDictionary({Key(): torch.ones(50)})
""",
        variables({"seen": 10, "table[key]": 40}),
    ),
    Planted(
        "views share their bytes",
        """
import torch
whole = torch.ones(100)
a, detached, flat = whole[:5], whole.detach(), whole.view(10, 10)
only_a_row = torch.ones(50, 20)[0]
wide, empty, number = torch.ones(1).expand(1000), torch.ones(0), torch.tensor(1.0)
copy = whole.clone()
""",
        variables({"whole": 100, "only_a_row": 1000, "wide": 1, "number": 1, "copy": 100}),
        also={"whole": "VARIABLE a"},
    ),
    Planted(
        "NumPy arrays over a tensor's bytes",
        """
import numpy, torch
array = torch.ones(10).numpy()
part, shaped = torch.ones(20).numpy()[::2], [torch.ones(30).numpy().reshape(2, 15)]
record = torch.ones(40).numpy().view(numpy.recarray)
view = memoryview(torch.ones(50).numpy())
numbers = numpy.ones(60, dtype=numpy.float32)
first, second = torch.from_numpy(numbers), torch.from_numpy(numbers)
objects = numpy.array([[None, torch.ones(70)], [{"k": torch.ones(80)}, None]], dtype=object)
class Box:
    pass
box = Box()
box.array = torch.ones(90).numpy()
frombuffer = torch.frombuffer(bytearray(400), dtype=torch.float32)
""",
        variables(
            {
                "array": 10,
                "part": 20,
                "shaped[0]": 30,
                "record": 40,
                "view": 50,
                "first": 60,
                "objects[0, 1]": 70,
                "objects[1, 0]['k']": 80,
                "box.array": 90,
                "frombuffer": 100,
            }
        ),
        also={"first": "VARIABLE second"},
    ),
    Planted(
        "iterators",
        """
import torch
it, zipped, mapped = iter([torch.ones(10)]), zip([torch.ones(20)]), map(str, [torch.ones(30)])
""",
        variables(
            {
                "it, an element": 10,
                "zipped, an element": 20,
                "mapped, an element": 30,
            }
        ),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_names(case: Planted, planter: Planter) -> None:
    check(case, planter.found(case.code))
