"""The watch beside torch's other machinery: faults are found, healthy steps left alone."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from nbinspect import NanReport, nanwatch

BOTH = pytest.mark.parametrize("light", [False, True], ids=["exact", "light"])
NAN, INF = float("nan"), float("inf")


def report_of(step, **options) -> NanReport:
    with nanwatch(stop=False, **options) as watch:
        step()
    return watch.report


def ops(report: NanReport) -> list[str]:
    return [one.op for one in report.findings]


def test_functional_gradients() -> None:
    w = torch.zeros(3)

    def loss(w):
        return w.sqrt().sum()

    assert report_of(lambda: torch.func.grad(lambda w: w.square().sum())(w)).healthy
    assert report_of(lambda: torch.func.vmap(torch.func.grad(lambda w: w.norm()))(w[None])).healthy

    def descend() -> None:
        p = nn.Parameter(torch.ones(3))
        (p * torch.func.grad(loss)(w)).sum().backward()

    report = report_of(descend)
    assert not report.healthy
    assert "loss" in report.findings[0].reaches
    assert report.findings[0].op in {"aten.div", "aten.sqrt", "unknown"}


@BOTH
def test_sparse_gradients(light) -> None:
    table = nn.Embedding(6, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    rows = torch.tensor([1, 2])

    def step(scale: float) -> None:
        optimizer.zero_grad()
        (table(rows) / scale).sum().backward()
        optimizer.step()

    assert report_of(lambda: step(1.0), light=light).healthy
    report = report_of(lambda: step(0.0), light=light)
    assert ops(report)[0] == "aten.div"
    assert {"loss", "grad"} <= set(report.findings[0].reaches)


@BOTH
def test_sparse_matrices(light) -> None:
    w = nn.Parameter(torch.ones(3, 2))
    matrix = torch.eye(3).to_sparse()
    assert report_of(lambda: (matrix @ w).sum().backward(), light=light).healthy
    bad = torch.sparse_coo_tensor([[0], [1]], [NAN], (3, 3))
    report = report_of(lambda: (bad @ w).sum().backward(), light=light)
    assert ops(report)[0] == "leaf"


@BOTH
@pytest.mark.keeps_tensors(reason="torch remembers the lengths of jagged tensors")
def test_nested_tensors(light) -> None:
    model = nn.Linear(3, 2)

    def step(value: float) -> None:
        parts = [torch.ones(2, 3), torch.full((4, 3), value)]
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
        model(nested).values().sum().backward()

    assert report_of(lambda: step(1.0), light=light).healthy
    assert not report_of(lambda: step(NAN), light=light).healthy


@BOTH
def test_eight_bit_floats(light) -> None:
    w = nn.Parameter(torch.ones(4))

    def step(factor: float) -> None:
        small = (w * factor).to(torch.float8_e5m2)
        small.float().sum().backward()

    assert report_of(lambda: step(1.0), light=light).healthy
    report = report_of(lambda: step(1e6), light=light)
    assert ops(report) == ["aten._to_copy"]


@BOTH
def test_complex_numbers(light) -> None:
    w = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def step(by: complex) -> None:
        spectrum = torch.fft.fft(w) / by
        spectrum.abs().square().sum().backward()

    assert report_of(lambda: step(1j), light=light).healthy
    assert ops(report_of(lambda: step(0j), light=light)) == ["aten.div"]


def test_backward_in_another_thread() -> None:
    """Its operations are not seen, but what they leave is, when the block ends."""
    w = nn.Parameter(torch.zeros(2))

    def step() -> None:
        loss = w.sqrt().sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()

    for light in (False, True):
        w.grad = None
        report = report_of(step, light=light)
        assert report.findings[0].reaches == ("grad",), light


@BOTH
def test_healthy_backward_in_another_thread(light) -> None:
    w = nn.Parameter(torch.ones(2))

    def step() -> None:
        thread = threading.Thread(target=w.square().sum().backward)
        thread.start()
        thread.join()

    assert report_of(step, light=light).healthy


@BOTH
def test_retained_and_repeated_backward(light) -> None:
    w = nn.Parameter(torch.tensor([0.0, 1.0]))

    def step() -> None:
        root = (w * 1).sqrt()
        root[1].backward(retain_graph=True)
        w.grad = None
        root[0].backward()

    report = report_of(step, light=light)
    assert report.findings[0].op == "aten.div"
    assert report.findings[0].node == "SqrtBackward0"


@BOTH
def test_higher_derivatives(light) -> None:
    w = nn.Parameter(torch.ones(3))

    def step() -> None:
        (slope,) = torch.autograd.grad(w.pow(3).sum(), w, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), w, create_graph=True)
        bend.sum().backward()

    assert report_of(step, light=light).healthy


@BOTH
def test_tied_weights_and_lists_of_modules(light) -> None:
    table = nn.Embedding(5, 3)
    out = nn.Linear(3, 5, bias=False)
    out.weight = table.weight
    parts = nn.ModuleList([nn.Linear(3, 3), nn.ModuleDict({"a": nn.Linear(3, 3)})])
    optimizer = torch.optim.AdamW([*table.parameters(), *parts.parameters()])
    rows = torch.tensor([0, 1])

    def step(scale: float) -> None:
        optimizer.zero_grad()
        h = parts[1]["a"](parts[0](table(rows)))
        F.cross_entropy(out(h) / scale, rows).backward()
        optimizer.step()

    assert report_of(lambda: step(1.0), light=light).healthy
    report = report_of(lambda: step(0.0), light=light)
    assert ops(report) == ["aten.div"]


@BOTH
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_forward_is_named_not_its_recomputation(light, reentrant) -> None:
    lin = nn.Linear(3, 3)

    def part(h):
        return (lin(h) * 0).sum(1) / h.detach().sub(h.detach()).sum(1)

    def step() -> None:
        x = torch.ones(2, 3, requires_grad=True)
        checkpoint(part, x, use_reentrant=reentrant).sum().backward()

    report = report_of(step, light=light)
    assert ops(report) == ["aten.div"]
    assert report.findings[0].phase == "forward"
    assert "h.detach().sub" in report.findings[0].where.text


@BOTH
def test_evaluation_and_inference(light) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()

    def step() -> None:
        with torch.inference_mode():
            out = model(torch.ones(2, 3)) / 0
            out.isnan().any().item()
        with torch.no_grad():
            model(torch.ones(2, 3)).log()

    report = report_of(step, light=light)
    assert report.healthy
    assert report.n_backwards == 0


COMPILED = """
import torch
from torch import nn
from nbinspect import nanwatch

def check(backend):
    w = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.1)

    @torch.compile(backend=backend)
    def forward(x):
        return (x * w).sum() / (x - x).sum()

    def step():
        for _ in range(2):
            optimizer.zero_grad()
            forward(torch.ones(3)).backward()
            optimizer.step()

    with nanwatch(stop=False, light=True) as watch:
        step()
    assert watch.report.replayed, watch.report.replay
    assert watch.report.findings[0].op == "aten.div", watch.report.findings
    assert watch.report.findings[0].reaches[0] == "loss"
    with torch.no_grad():
        w.fill_(1.0)
    with nanwatch(stop=False) as watch:
        step()
    assert not watch.report.healthy
    assert any("ompiled functions ran as compiled" in note for note in watch.report.notes)

for backend in ("eager", "aot_eager"):
    check(backend)
    torch.compiler.reset()
"""


def test_compiled_functions(tmp_path) -> None:
    """In a process of its own: torch's compiler patches modules and starts threads for good."""
    script = tmp_path / "compiled.py"
    script.write_text(COMPILED)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# Random graphs with one planted fault.

SAFE = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "sin": torch.sin,
    "half": lambda h: h * 0.5,
    "square": lambda h: (h * 0.1).square(),
    "linear": lambda h: h @ torch.full((4, 4), 0.25),
    "softmax": lambda h: h.softmax(-1),
    "norm": lambda h: F.layer_norm(h, (4,)),
    "relu": torch.relu,
    "sort": lambda h: h.sort(-1).values,
    "cat": lambda h: torch.cat([h, h])[:3],
    "residual": lambda h: h + h.tanh(),
    "masked": lambda h: h.masked_fill(torch.ones(4).tril().bool()[-1:] == 0, -INF),
}
PLANTED = {
    "aten.div": lambda h: h / (h.detach() - h.detach()),
    "aten.log": lambda h: (h.detach() * 0 - 1 + 0 * h).log(),
    "aten.sqrt": lambda h: (0 * h - 1).sqrt(),
    "aten.rsqrt": lambda h: (0 * h).rsqrt(),
    "aten.reciprocal": lambda h: (0 * h).reciprocal(),
    "aten.exp": lambda h: (0 * h + 1000).exp(),
    "aten.acos": lambda h: (0 * h + 2).acos(),
    "aten.pow": lambda h: (0 * h) ** -1.5,
}
# What an infinity does not come through: then it is absorbed, and no finding.
KEEPS = {"half", "residual", "cat", "sort"}


def graph(names: list[str], planted: str | None, at: int):
    w = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))

    def step() -> None:
        h = w * 1
        for i, name in enumerate(names):
            if planted is not None and i == at:
                h = PLANTED[planted](h)  # <- here
            h = SAFE[name](h)
        h.sum().backward()

    return step


@settings(max_examples=30)
@given(st.lists(st.sampled_from(sorted(SAFE.keys() - {"masked"})), min_size=1, max_size=7))
def test_a_healthy_graph_is_left_alone(names) -> None:
    for light in (False, True):
        assert report_of(graph(names, None, 0), light=light).healthy


@settings(max_examples=40)
@given(
    before=st.lists(st.sampled_from(sorted(SAFE.keys() - {"masked"})), max_size=4),
    after=st.lists(st.sampled_from(sorted(KEEPS)), min_size=1, max_size=3),
    planted=st.sampled_from(sorted(PLANTED)),
    light=st.booleans(),
)
def test_the_planted_operation_is_named(before, after, planted, light) -> None:
    step = graph([*before, *after], planted, len(before))
    [found] = report_of(step, light=light).findings
    assert found.op == planted
    assert found.kind == "born"
    assert found.phase == "forward"
    assert "loss" in found.reaches
