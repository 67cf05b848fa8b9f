"""Modules that were not watched: those named are those that ran."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import torch
from torch import nn

import nbinspect
from nbinspect.autograd_graph import operations, watched
from nbinspect.autograd_graph.walk import is_leaf, walk
from nbinspect.tensors import node_name


@pytest.fixture(autouse=True)
def forget():
    yield
    watched.remember(watched.Watched())


def named(loss, *, but=()):
    """Give the module of each operation, but of what leads to a parameter or is left out."""
    left_out = {"AccumulateGrad", "TBackward0", *but}
    return [(n.name, n.module) for n in nbinspect.autograd(loss).nodes if n.name not in left_out]


def mlp(*between):
    model = nn.Sequential(nn.Linear(6, 6), *between, nn.Linear(6, 6))
    return model, torch.randn(4, 6)


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class Doubling(nn.ReLU):
    def forward(self, x):
        return 2 * super().forward(x)


FOREIGN = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "times 2": lambda h: h * 2,
    "softmax": lambda h: h.softmax(-1),
    "an activation alike": nn.functional.leaky_relu,
    "two": lambda h: (h + 1).exp(),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize(
    "skipped", [nn.ReLU, nn.Flatten, lambda: nn.MaxPool1d(1), lambda: nn.BatchNorm1d(6)]
)
def test_a_module_that_never_ran_is_not_named(name, skipped):
    model, x = mlp(skipped())
    loss = model[2](FOREIGN[name](model[0](x))).sum()
    modules = {module for _, module in named(loss)}
    assert modules == {"model.0", "model.2", ""}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_between_two_parts_with_nothing_between_them_is_of_neither(name):
    model, x = mlp()
    hidden = model[0](x)
    names = {name for name, module in named(model[1](FOREIGN[name](hidden)).sum()) if not module}
    assert len(names) >= 2, "that, and the sum"


def test_what_follows_a_module_that_ran_is_not_its_own():
    model, x = mlp(nn.ReLU())
    loss = model[2](model[1](model[0](x)).sigmoid()).sum()
    assert named(loss)[1:3] == [("ReluBackward0", "model.1"), ("SigmoidBackward0", "")]


def test_outside_of_a_container_is_in_the_module_that_has_it():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.head = nn.ModuleList(nn.Linear(6, 6) for _ in range(3)), nn.Tanh()

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).relu()
            return self.head(x)

    net = Net()
    found = named(net(torch.randn(4, 6)).sum())
    assert [module for name, module in found if name == "ReluBackward0"][:2] == ["net", "net"]


def test_a_layer_that_is_called_in_a_row_has_no_activation():
    layer, h = nn.Linear(6, 6), torch.randn(2, 4, 6)
    for _ in range(3):
        h = layer(h).sigmoid()
    assert {m for name, m in named(h.sum()) if name == "SigmoidBackward0"} == {""}
    assert {m for name, m in named(h.sum()) if name == "AddmmBackward0"} == {"layer"}


IMAGES, ROWS, TEXTS = (2, 4, 8, 8), (2, 4, 6), (4, 6)


def linear():
    return nn.Linear(6, 6)


def stacks():
    """Make them anew: a module that a test file keeps would be in every census that follows."""
    return {
        "activations": (TEXTS, [linear(), nn.ReLU(), nn.Dropout(0.5), linear()]),
        "three axes": (ROWS, [linear(), nn.GELU(), nn.Dropout(), linear()]),
        "in place": (ROWS, [linear(), nn.ReLU(inplace=True), linear()]),
        "alike": (TEXTS, [linear(), nn.ReLU(), nn.ReLU(), nn.Dropout(), nn.Dropout(), linear()]),
        "several operations": (
            TEXTS,
            [linear(), nn.Softsign(), nn.Tanhshrink(), nn.Softmin(1), linear()],
        ),
        "pictures": (
            IMAGES,
            [
                nn.Conv2d(4, 4, 3),
                nn.BatchNorm2d(4, affine=False),
                nn.ReLU6(),
                nn.MaxPool2d(2),
                nn.Dropout2d(),
                nn.Flatten(),
                nn.Linear(36, 2),
            ],
        ),
        "pooled": (
            IMAGES,
            [nn.Conv2d(4, 4, 3), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)],
        ),
        "unflattened": (
            TEXTS,
            [linear(), nn.Unflatten(1, (2, 3)), nn.Softmax(-1), nn.Conv1d(2, 2, 1)],
        ),
        "flattened": (ROWS, [linear(), nn.Flatten(), nn.Linear(24, 2)]),
        "rows": (
            ROWS,
            [
                nn.Conv1d(4, 4, 3, padding=1),
                nn.InstanceNorm1d(4),
                nn.MaxPool1d(2),
                nn.Upsample(scale_factor=2),
                nn.Conv1d(4, 4, 1),
                nn.AvgPool1d(2),
                nn.Conv1d(4, 4, 1),
            ],
        ),
        "padded": (
            IMAGES,
            [nn.Conv2d(4, 4, 3), nn.ReflectionPad2d(1), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1)],
        ),
        "one in another": (
            TEXTS,
            [
                nn.Sequential(linear(), nn.Tanh()),
                nn.Dropout(),
                nn.Sequential(nn.ELU(), nn.Sequential(nn.Mish(), linear())),
            ],
        ),
        "own classes": (TEXTS, [linear(), nn.Dropout(), Swish(), linear(), Doubling(), linear()]),
    }


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", list(stacks()))
def test_parts_without_parameters_are_named_as_if_they_were_watched(name, autocast):
    shape, layers = stacks()[name]
    model, x = nn.Sequential(*layers), torch.randn(shape)
    cast = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext()
    with cast, nbinspect.graphwatch():
        loss = model(x).sum()
    seen = named(loss)
    watched.remember(watched.Watched())
    guessed = named(loss)
    kept = [
        n for n in range(len(seen) - 1) if seen[n][0] not in {"ToCopyBackward0", "ViewBackward0"}
    ]
    assert [guessed[n] for n in kept] == [seen[n] for n in kept]


ARGUMENTS = {
    "AdaptiveAvgPool": (2,),
    "AdaptiveMaxPool": (2,),
    "AvgPool": (2,),
    "ChannelShuffle": (2,),
    "Conv": (4, 4, 3),
    "Fold": ((4, 4), 2),
    "FractionalMaxPool": (2, 2),
    "GLU": (-1,),
    "GroupNorm": (2, 4),
    "LPPool": (2, 2),
    "LayerNorm": (6,),
    "Linear": (6, 6),
    "LocalResponseNorm": (2,),
    "LogSoftmax": (-1,),
    "MaxPool": (2,),
    "Pixel": (2,),
    "RMSNorm": (6,),
    "Softmax": (-1,),
    "Softmax2d": (),
    "Softmin": (-1,),
    "Threshold": (0.1, 0.0),
    "Unflatten": (-1, (2, 3)),
    "Unfold": (2,),
    "Upsample": (None, 2),
    "_BatchNorm": (4,),
    "_CircularPadNd": (1,),
    "_ConstantPadNd": (1, 0.5),
    "_InstanceNorm": (4,),
    "_ReflectionPadNd": (1,),
    "_ReplicationPadNd": (1,),
}
SHAPES = [(4, 6), ROWS, IMAGES, (2, 4, 6, 6), (4, 6, 6, 6), (2, 4, 6, 6, 6), (2, 16, 9)]


def made(name):
    """Make a module of each class that has the forward of the one with this name."""
    found = max((one for one in ARGUMENTS if name.startswith(one)), key=len, default="")
    own = name.strip("_").removesuffix("Nd")
    of_base = [f"{own.replace('Constant', 'Zero')}{n}d" for n in (1, 2, 3)]
    for kind in of_base if name.startswith("_") else [name]:
        arguments = ARGUMENTS.get(found, ())
        yield getattr(nn, kind)(*arguments[: 1 if kind.startswith("Zero") else None])


@pytest.mark.filterwarnings("ignore:dropout", "ignore:input's size")
@pytest.mark.parametrize("name", [*operations.ONE, *operations.SEVERAL])
def test_what_is_known_of_a_module_is_what_it_makes(name):
    n_run = 0
    for module, shape in itertools.product(made(name), SHAPES):
        known = operations.operations_of(module)
        x = torch.rand(shape, requires_grad=True)
        with contextlib.suppress(RuntimeError, ValueError, IndexError, NotImplementedError):
            end = module(x)
            n_run += 1
            nodes = [node for node in walk(end.grad_fn).nodes if not is_leaf(node)]
            words = {operations.word(node_name(node)) for node in nodes} - {"T"}
            assert words <= known.words
            assert not known.is_one or len(nodes) <= 1
    assert n_run


def test_what_is_not_torchs_own_is_not_known():
    patched = nn.ReLU()
    patched.forward = torch.sigmoid
    assert operations.operations_of(patched) is None
    assert operations.operations_of(Doubling()) is None
    assert operations.operations_of(Swish()) is None
    assert operations.word("CudnnBatchNormBackward0") == "BatchNorm"


@pytest.mark.parametrize(("n", "is_told"), [(300, True), (900, False)])
def test_many_modules_without_parameters_in_a_row(n, is_told):
    model = nn.Sequential(nn.Linear(4, 4), *(nn.ReLU() for _ in range(n)), nn.Linear(4, 4))
    modules = {module for name, module in named(model(torch.randn(2, 4)).sum()) if "Relu" in name}
    assert len(modules) == (n if is_told else 1)
