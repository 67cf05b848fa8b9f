"""Models, their gradients, optimizers, hooks and data: each under its fully qualified name."""

from __future__ import annotations

import pytest
from planting import Planted, Planter, check

CASES = [
    Planted(
        "parameters and buffers",
        """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Sequential(nn.Linear(2, 3, bias=False))])
        self.heads = nn.ModuleDict({"main": nn.Linear(2, 4, bias=False)})
        self.register_buffer("mask", torch.ones(10))
        self.register_buffer("cache", torch.ones(20), persistent=False)
        self.plain = torch.ones(30)
        self.kv = {"k": [torch.ones(40)]}
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(50))])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(60))})
        self.emb, self.out = nn.Embedding(10, 7), nn.Linear(7, 10, bias=False)
        self.out.weight = self.emb.weight
        self.unseen = [nn.Linear(2, 5, bias=False)]
net = Net()
""",
        {
            ("PARAMETER", "net.layers.0.weight"): 16,
            ("PARAMETER", "net.layers.1.0.weight"): 24,
            ("PARAMETER", "net.heads.main.weight"): 32,
            ("BUFFER", "net.mask"): 40,
            ("BUFFER", "net.cache"): 80,
            ("VARIABLE", "net.plain"): 120,
            ("VARIABLE", "net.kv['k'][0]"): 160,
            ("PARAMETER", "net.scales.0"): 200,
            ("PARAMETER", "net.named.a"): 240,
            ("PARAMETER", "net.emb.weight"): 280,
            ("PARAMETER", "net.unseen[0].weight"): 40,
        },
        also={"net.emb.weight": "PARAMETER net.out.weight"},
    ),
    Planted(
        "parts of a model by the model's name",
        """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 3, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for layer in model:
    pass
for p in model.parameters():
    pass
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
""",
        {
            ("PARAMETER", "model.0.weight"): 16,
            ("PARAMETER", "model.1.weight"): 24,
            ("GRADIENT", "model.0.weight.grad"): 16,
            ("GRADIENT", "model.1.weight.grad"): 24,
            ("OPTIMIZER_STATE", "optimizer.state[model.0.weight]['momentum_buffer']"): 16,
            ("OPTIMIZER_STATE", "optimizer.state[model.1.weight]['momentum_buffer']"): 24,
        },
        also={"model.1.weight": "VARIABLE p"},
    ),
    Planted(
        "wrappers are not the model",
        """
import torch
from torch import nn
model = nn.Linear(2, 2, bias=False)
parallel = nn.DataParallel(model)
class Compiled(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self._orig_mod = inner
compiled = Compiled(model)
only = nn.DataParallel(nn.Linear(3, 3, bias=False))
""",
        {("PARAMETER", "model.weight"): 16, ("PARAMETER", "only.module.weight"): 36},
    ),
    Planted(
        "models in other places",
        """
import copy, torch
from torch import nn
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())
trainer = Trainer(nn.Linear(2, 2, bias=False))
ema = copy.deepcopy(trainer.model)
average = torch.optim.swa_utils.AveragedModel(trainer.model)
models, by_name = [nn.Linear(3, 3, bias=False)], {"a": nn.Linear(4, 4, bias=False)}
weights = {k: v for k, v in ema.state_dict().items()}
alone = nn.Parameter(torch.ones(100))
""",
        {
            ("PARAMETER", "trainer.model.weight"): 16,
            ("PARAMETER", "ema.weight"): 16,
            ("PARAMETER", "average.module.weight"): 16,
            ("BUFFER", "average.n_averaged"): 8,
            ("PARAMETER", "models[0].weight"): 36,
            ("PARAMETER", "by_name['a'].weight"): 64,
            ("VARIABLE", "alone"): 400,
        },
        also={
            "trainer.model.weight": "OPTIMIZER_STATE trainer.optimizer.param_groups[0]['params'][0]",
            "ema.weight": "VARIABLE weights['weight']",
        },
    ),
    Planted(
        "Adam",
        """
import torch
model = torch.nn.Linear(10, 10)
optimizer = torch.optim.Adam(model.parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
model(torch.ones(1, 10)).sum().backward()
optimizer.step()
""",
        {
            ("PARAMETER", "model.weight"): 400,
            ("PARAMETER", "model.bias"): 40,
            ("GRADIENT", "model.weight.grad"): 400,
            ("GRADIENT", "model.bias.grad"): 40,
            ("OPTIMIZER_STATE", "optimizer.state[model.weight]['exp_avg']"): 400,
            ("OPTIMIZER_STATE", "optimizer.state[model.weight]['exp_avg_sq']"): 400,
            ("OPTIMIZER_STATE", "optimizer.state[model.weight]['step']"): 4,
            ("OPTIMIZER_STATE", "optimizer.state[model.bias]['exp_avg']"): 40,
            ("OPTIMIZER_STATE", "optimizer.state[model.bias]['exp_avg_sq']"): 40,
            ("OPTIMIZER_STATE", "optimizer.state[model.bias]['step']"): 4,
        },
    ),
    Planted(
        "optimizers that outlive their models",
        """
import torch
def train():
    model = torch.nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return torch.optim.lr_scheduler.StepLR(optimizer, 3), torch.optim.AdamW(torch.nn.Linear(4, 4, bias=False).parameters())
schedule, adam = train()
""",
        {
            ("OPTIMIZER_STATE", "schedule.optimizer.param_groups[0]['params'][0]"): 400,
            ("OPTIMIZER_STATE", "adam.param_groups[0]['params'][0]"): 64,
        },
    ),
    Planted(
        "parametrized and frozen modules",
        """
import torch
from torch import nn
class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T
square = nn.Linear(6, 6, bias=False)
nn.utils.parametrize.register_parametrization(square, "weight", Symmetric())
normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8, bias=False))
frozen = nn.Linear(12, 12, bias=False)
frozen(torch.ones(1, 12)).sum().backward()
frozen.weight.requires_grad_(False)
lazy = nn.LazyLinear(5)
""",
        {
            ("PARAMETER", "square.parametrizations.weight.original"): 144,
            ("PARAMETER", "normed.parametrizations.weight.original0"): 32,
            ("PARAMETER", "normed.parametrizations.weight.original1"): 256,
            ("PARAMETER", "frozen.weight"): 576,
            ("GRADIENT", "frozen.weight.grad"): 576,
        },
    ),
    Planted(
        "hooks",
        """
import functools, torch
from torch import nn
class Recorder:
    def __init__(self):
        self.outs = []
    def hook(self, module, args, out):
        self.outs.append(out.detach())
class Callable:
    def __init__(self):
        self.seen = {"g": torch.ones(10)}
    def __call__(self, module, gi, go):
        pass
def keeping(n):
    buffer = [torch.ones(n)]
    def keep(*args):
        return buffer and None
    return keep
recorder = Recorder()
model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU())
model[0].register_forward_hook(recorder.hook)
model[1].register_full_backward_hook(Callable())
model.register_forward_pre_hook(keeping(20))
model[0].register_forward_hook(functools.partial(lambda kept, *args: None, [torch.ones(30)]))
leaf = torch.ones(5, requires_grad=True)
leaf.register_hook(keeping(40))
leaf.register_post_accumulate_grad_hook(keeping(50))
product = leaf * 3
product.register_hook(keeping(60))
model.weight_optimizer = torch.optim.SGD([leaf], lr=0.1)
model.weight_optimizer.register_step_post_hook(keeping(70))
model._register_state_dict_hook(keeping(80))
handle = nn.modules.module.register_module_forward_hook(keeping(90))
model(torch.ones(2, 4))
answer = nbinspect.gpumem()
handle.remove()
""",
        {
            ("PARAMETER", "model.0.weight"): 64,
            ("VARIABLE", "recorder.outs[0]"): 32,
            ("HOOK", "hook Callable on model.1, seen['g']"): 40,
            ("HOOK", "hook keep on model, closure variable 'buffer'[0]"): 80 + 320,
            ("HOOK", "hook <lambda> on model.0, args[0][0]"): 120,
            ("HOOK", "hook keep on leaf, closure variable 'buffer'[0]"): 160 + 200,
            ("HOOK", "hook keep on product, closure variable 'buffer'[0]"): 240,
            ("HOOK", "hook keep on model.weight_optimizer, closure variable 'buffer'[0]"): 280,
            ("HOOK", "hook keep on torch.nn.modules.module, closure variable 'buffer'[0]"): 360,
            ("OPTIMIZER_STATE", "model.weight_optimizer.param_groups[0]['params'][0]"): 20,
            ("SAVED_FOR_BACKWARD", "product"): 8,
            ("VARIABLE", "product"): 20,
        },
    ),
    Planted(
        "a hook that only C++ lists",
        """
import torch
y = torch.ones(5, requires_grad=True) * 2
def keeping():
    buffer = [torch.ones(100)]
    def keep(*args):
        return buffer and None
    return keep
y.grad_fn.register_hook(keeping())
""",
        {
            ("SAVED_FOR_BACKWARD", "y"): 20 + 8,
            ("VARIABLE", "y"): 20,
            ("OTHER", "OrderedDict[#], closure variable 'buffer'[0]"): 400,
        },
        also={
            "OrderedDict[#], closure variable 'buffer'[0]": "an autograd node that holds its hooks"
        },
    ),
    Planted(
        "data loaders",
        """
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
class Cached(Dataset):
    def __init__(self):
        self.cache = [torch.ones(30)]
    def __len__(self):
        return 1
    def __getitem__(self, i):
        return self.cache[i]
loader = DataLoader(TensorDataset(torch.ones(100, 4), torch.ones(100)), batch_size=10)
batches = iter(loader)
running = iter(DataLoader(TensorDataset(torch.ones(50))))
next(running)
dataset = Cached()
other = DataLoader(dataset)
alone = TensorDataset(torch.ones(70))
""",
        {
            ("DATALOADER", "loader.dataset.tensors[0..1]"): 2000,
            ("DATALOADER", "running._dataset.tensors[0]"): 200,
            ("DATALOADER", "other.dataset.cache[0]"): 120,
            ("VARIABLE", "alone.tensors[0]"): 280,
        },
        also={"other.dataset.cache[0]": "VARIABLE dataset.cache[0]"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_modules(case: Planted, planter: Planter) -> None:
    check(case, planter.found(case.code))
