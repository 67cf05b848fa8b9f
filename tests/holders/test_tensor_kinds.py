"""Tensors of every kind, and objects that do all they can not to be looked at."""

from __future__ import annotations

import pytest
import torch
from planting import Planted, Planter, check
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from nbinspect.tensors import describe, looking

CASES = [
    Planted(
        "layouts",
        """
import torch
coo, csr = torch.eye(10).to_sparse(), torch.eye(20).to_sparse_csr()
values = coo._values()
quantized = torch.quantize_per_tensor(torch.ones(100), 0.1, 0, torch.qint8)
nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(5)])
jagged = torch.nested.nested_tensor([torch.ones(30), torch.ones(50)], layout=torch.jagged)
conjugate = torch.ones(70, dtype=torch.complex64).conj()
every_third = torch.ones(90)[::3]
shared = torch.ones(600).share_memory_()
masked = torch.masked.masked_tensor(torch.ones(33), torch.ones(33).bool())
""",
        {
            ("VARIABLE", "coo"): 160 + 40,
            ("VARIABLE", "csr"): 168 + 320 + 80,
            ("VARIABLE", "quantized"): 100,
            ("VARIABLE", "nested"): 32,
            ("VARIABLE", "jagged._base"): 320,
            ("VARIABLE", "jagged._offsets"): 24,
            ("VARIABLE", "conjugate"): 560,
            ("VARIABLE", "every_third"): 360,
            ("VARIABLE", "shared"): 2400,
            ("VARIABLE", "masked._masked_data"): 132,
            ("VARIABLE", "masked._masked_mask"): 33,
        },
        also={"coo": "VARIABLE values"},
    ),
    Planted(
        "tensors without bytes",
        """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
meta = torch.ones(1000, device="meta")
with FakeTensorMode():
    fake = torch.ones(1000)
freed = torch.ones(500)
freed.untyped_storage().resize_(0)
empty = torch.ones(0)
""",
        {},
    ),
    Planted(
        "what cannot be read is said",
        """
import torch
opaque = torch.ones(4, 4).to_mkldnn()
kept = torch.ones(10)
""",
        {("VARIABLE", "kept"): 40},
        complete=False,
    ),
    Planted(
        "DLPack",
        """
import torch, numpy
capsule = torch.utils.dlpack.to_dlpack(torch.ones(100))
array = numpy.from_dlpack(torch.ones(200))
""",
        {("OTHER", "tensor 100 float32"): 400, ("OTHER", "tensor 200 float32"): 800},
        also={"tensor 100 float32": "1 C++ reference that cannot be named (DLPack"},
    ),
    Planted(
        "TorchScript",
        """
import gc, torch
traced = torch.jit.trace(torch.nn.Linear(9, 9, bias=False), torch.ones(1, 9))
gc.collect()
""",
        {("PARAMETER", "traced.weight"): 324, ("OTHER", "tensor 1x9 float32"): 36},
        also={"tensor 1x9 float32": "TorchScript"},
    ),
    Planted(
        "TorchScript that was loaded, whose tensors C++ alone holds",
        """
import gc, io, torch
inner = torch.nn.Sequential(torch.nn.Linear(9, 9, bias=False), torch.nn.BatchNorm1d(5, affine=False))
file = io.BytesIO()
torch.jit.save(torch.jit.script(torch.nn.Sequential(inner)), file)
file.seek(0)
net = torch.jit.load(file)
del inner, file
gc.collect()
""",
        {
            ("PARAMETER", "net.0.0.weight"): 324,
            ("BUFFER", "net.0.1.running_mean"): 20,
            ("BUFFER", "net.0.1.running_var"): 20,
            ("BUFFER", "net.0.1.num_batches_tracked"): 8,
        },
    ),
    Planted(
        "forward-mode gradients",
        """
import torch
import torch.autograd.forward_ad as forward_ad
with forward_ad.dual_level():
    dual = forward_ad.make_dual(torch.ones(10), torch.ones(10))
    answer = nbinspect.gpumem()
    del dual
""",
        {("VARIABLE", "dual"): 40, ("OTHER", "tensor 10 float32"): 40},
    ),
    Planted(
        "subclasses whose functions raise",
        """
import torch
class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
    def __init__(self, inner):
        self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        facts.append("dispatch")
        raise RuntimeError("no")
class Counting(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        facts.append("function")
        raise RuntimeError("no")
wrapper = Wrapper(torch.ones(10))
counting = torch.Tensor._make_subclass(Counting, torch.ones(20))
object.__setattr__(counting, "extra", torch.ones(30))
""",
        {
            ("VARIABLE", "wrapper.inner"): 40,
            ("VARIABLE", "counting"): 80,
            ("VARIABLE", "counting.extra"): 120,
        },
    ),
    Planted(
        "objects whose methods raise",
        """
import torch, types, sys
def no(*args):
    facts.append("called")
    raise ZeroDivisionError
class Module(torch.nn.Module):
    __getattr__ = __repr__ = __eq__ = __hash__ = __len__ = __bool__ = no
    prop = property(no)
module = Module.__new__(Module)
torch.nn.Module.__init__(module)
vars(module)["_buffers"]["b"] = torch.ones(10)
vars(module)["_parameters"]["w"] = torch.nn.Parameter(torch.ones(20))
class NoClass:
    __class__ = __dict__ = property(no)
    __slots__ = ("t",)
no_class = NoClass()
no_class.t = torch.ones(30)
class Liar:
    __class__ = torch.Tensor
    def __init__(self):
        self.t = torch.ones(40)
liar = Liar()
class Closed:
    __getattribute__ = no
closed = Closed()
object.__setattr__(closed, "t", torch.ones(50))
class BadDict(dict):
    items = __iter__ = __getitem__ = keys = __len__ = get = no
bad_dict = BadDict(k=torch.ones(60))
class BadList(list):
    __iter__ = __len__ = __getitem__ = no
bad_list = BadList([torch.ones(70)])
class BadSet(set):
    __iter__ = __len__ = __contains__ = no
bad_set = BadSet([torch.ones(80)])
class Key:
    __eq__ = __repr__ = __str__ = no
    def __hash__(self):
        return 1
bad_key = {Key(): torch.ones(90)}
class Text(str):
    __eq__ = __repr__ = __str__ = __format__ = no
    __hash__ = str.__hash__
text_key = {Text("key"): torch.ones(100)}
class Meta(type):
    __hash__ = __eq__ = __instancecheck__ = __subclasscheck__ = __repr__ = no
    __name__ = __module__ = __mro__ = property(no)
    def __getattribute__(cls, name):
        facts.append(name)
        raise ZeroDivisionError
HasMeta = type.__new__(Meta, "HasMeta", (), {"t": torch.ones(110), "__slots__": ("own",)})
has_meta = object.__new__(HasMeta)
HasMeta_own = type.__dict__["__dict__"].__get__(HasMeta)["own"].__set__(has_meta, torch.ones(120))
class Lazy(types.ModuleType):
    __getattribute__ = no
sys.modules["planted_lazy"], sys.modules["planted_dict"] = Lazy("planted_lazy"), bad_dict
facts.clear()
answer = nbinspect.gpumem()
del sys.modules["planted_lazy"], sys.modules["planted_dict"]
""",
        {
            ("BUFFER", "module.b"): 40,
            ("PARAMETER", "module.w"): 80,
            ("VARIABLE", "no_class.t"): 120,
            ("VARIABLE", "liar.t"): 160,
            ("VARIABLE", "closed.t"): 200,
            ("VARIABLE", "bad_dict['k']"): 240,
            ("VARIABLE", "bad_list[0]"): 280,
            ("VARIABLE", "bad_set, an element"): 320,
            ("VARIABLE", "bad_key[<Key>]"): 360,
            ("VARIABLE", "text_key['key']"): 400,
            ("VARIABLE", "HasMeta.t"): 440,
            ("VARIABLE", "has_meta.own"): 480,
        },
    ),
    Planted(
        "what gc.freeze hides is said",
        """
import gc, torch
gc.collect()
kept = torch.ones(10)
gc.freeze()
answer = nbinspect.gpumem()
gc.unfreeze()
""",
        {},
        complete=False,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tensor_kinds(case: Planted, planter: Planter) -> None:
    check(case, planter.found(case.code))


def test_notes_say_what_is_missing(planter: Planter) -> None:
    code = {case.name: case.code for case in CASES}
    opaque = planter.found(code["what cannot be read is said"])
    assert "Tensor: Cannot access storage" in opaque.notes[0]
    frozen = planter.found(code["what gc.freeze hides is said"])
    assert "gc.freeze()" in frozen.notes[0]


class Unwilling(torch.Tensor):
    @property
    def shape(self):
        raise TypeError("no shape")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.zeros(2, 3, dtype=torch.bfloat16), "2x3 bfloat16"),
        (lambda: torch.tensor(1.0), "scalar float32"),
        (lambda: torch.zeros(0, 3), "0x3 float32"),
        (lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(5)]), "nested float32"),
        (lambda: _symbolic(torch.zeros(7, 5)), "7x5 float32"),
        (lambda: torch.ones(3).as_subclass(Unwilling), "Unwilling float32"),
    ],
    ids=["matrix", "scalar", "empty", "nested", "symbolic", "unwilling"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_in_words(make, words: str) -> None:
    tensor = make()
    with looking():
        assert describe(tensor) == words


def _symbolic(tensor: torch.Tensor) -> torch.Tensor:
    return FakeTensorMode(shape_env=ShapeEnv()).from_tensor(tensor, static_shapes=False)
