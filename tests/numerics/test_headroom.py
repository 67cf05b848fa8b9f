import math
import re
import subprocess
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from autocast_runs import CASES, Case, random_case
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint
from training import MODELS, Training

import nbinspect
from nbinspect import HeadroomReport, headroom
from nbinspect.numerics.autocast_lists import policy
from nbinspect.numerics.call_sites import CallSites
from nbinspect.numerics.exponents import spread, values_of
from nbinspect.numerics.headroom_records import LossScale
from nbinspect.numerics.margins import HeadroomWatch
from nbinspect.ops import OpStream

TINY, NORMAL = 2.0**-25, 2.0**-14


def watched(body) -> HeadroomReport:
    with HeadroomWatch() as watch:
        body()
    return watch.report


def linear(scale: float = 1.0) -> nn.Linear:
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    with torch.no_grad():
        layer.weight.mul_(scale)
    return layer


def op(report: HeadroomReport, name: str, phase: str = "forward"):
    return next(one for one in report.ops if one.op == f"aten.{name}" and one.phase == phase)


# --- the forecast against the real thing


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_forecast_names_what_overflows_under_real_autocast(case: Case):
    real = case.run_in_float16()
    assert bool(real.op) == case.overflows  # the case is what it says
    first = watched(case.run_plain).first_overflow
    assert (first.op if first else "") == real.op
    if first:
        assert (first.phase == "backward") == real.in_backward


def test_forecast_on_random_networks():
    """The same operation, or none, in each; about half of them overflow."""
    wrong, n_overflows = [], 0
    for case in map(random_case, range(40)):
        real = case.run_in_float16()
        first = watched(case.run_plain).first_overflow
        n_overflows += bool(real.op)
        if first and first.caution:  # rounding decides
            continue
        same_cast = (
            first and first.of == "input" and (first.phase == "backward") == real.in_backward
        )
        if not same_cast and (first.op if first else "") != real.op:
            wrong.append((case.name, first, real.op))
    assert wrong == []
    assert 12 <= n_overflows <= 30


def test_forecast_tells_a_lost_input_from_a_lost_result():
    asked = ("mlp, inputs x 1e6", "mlp, weights x 100")
    by_name = {
        case.name: watched(case.run_plain).first_overflow for case in CASES if case.name in asked
    }
    assert by_name["mlp, inputs x 1e6"].of == "input"
    assert by_name["mlp, weights x 100"].of == "result"
    assert by_name["mlp, weights x 100"].largest > 65504


def test_devices_keep_different_operations_in_float32():
    def step():
        (linear(1e3)(torch.ones(4, 8)) ** 2).sum()

    first = {one.setting: one.first for one in watched(step).forecasts}
    assert first["autocast on cpu"].op == "aten.pow"
    assert first["autocast on cuda"] is None
    assert first["the model in float16"].op == "aten.pow"


def test_values_at_the_edge_of_float16():
    held = watched(lambda: linear()(torch.ones(4, 8)) * 0 + 65519.0)
    assert held.forecasts[2].first is None
    lost = watched(lambda: (linear()(torch.ones(4, 8)) * 0 + 182) * 360)
    assert lost.forecasts[2].first.caution.startswith("it is so near")
    assert torch.tensor(65519.0).half().isfinite()
    assert torch.tensor(65520.0).half().isinf()


@pytest.mark.parametrize(
    "mask",
    [
        lambda scores, gone: scores.masked_fill(gone, float("-inf")),
        lambda scores, gone: scores.masked_fill(gone, -1e9),
        lambda scores, gone: scores.masked_fill(gone, torch.finfo(scores.dtype).min),
        lambda scores, gone: scores + gone.float() * -1e9,
        lambda scores, gone: scores + gone.float() * torch.finfo(torch.float32).min,
        lambda scores, gone: torch.where(gone, torch.tensor(-1e9), scores),
        lambda scores, gone: scores + torch.full((8, 8), -1e9).triu(1),
    ],
)
def test_masks_are_no_overflow(mask):
    gone = torch.ones(8, 8, dtype=torch.bool).triu(1)
    report = watched(lambda: mask(linear()(torch.ones(8, 8)), gone).softmax(-1).sum().backward())
    assert [one.first for one in report.forecasts] == [None] * 3
    assert max(one.largest for one in report.ops) < 100


def test_a_number_that_torch_refuses_in_float16():
    gone = torch.ones(8, 8, dtype=torch.bool).triu(1)

    def scores():
        return linear()(torch.ones(8, 8)).masked_fill(gone, -1e9)

    with torch.autocast("cpu", torch.float16), pytest.raises(RuntimeError, match="overflow"):
        scores()
    report = watched(scores)
    assert "aten.masked_fill" in report.notes[0]
    assert "torch.finfo" in report.notes[0]
    assert not watched(lambda: torch.zeros(8, 8).masked_fill(gone, -1e9)).notes[1:]


def test_an_infinity_made_in_float32_is_named():
    first = watched(lambda: (linear()(torch.ones(4, 8)) * 0 + 100).exp()).forecasts[2].first
    assert (first.op, first.largest) == ("aten.exp", math.inf)


def test_a_module_that_may_cast_up_is_named_as_a_doubt():
    class Norm(nn.Module):
        def forward(self, x):
            x = x.to(torch.float32)  # nothing to do in a float32 run
            return x.pow(2).mean(-1)

    first = watched(lambda: Norm()(linear(1e4)(torch.ones(4, 8)))).forecasts[0].first
    assert "Norm.forward() casts to float32" in first.caution


@pytest.mark.parametrize(
    ("device", "lists"), [("cpu", AutocastCPUTestLists), ("cuda", AutocastTestLists)]
)
def test_policies_are_those_that_torch_tests(device, lists):
    known = lists(torch.device("cpu"))

    def names(*kinds):
        return {one[0] for kind in kinds for one in getattr(known, kind, ())}

    half = names("torch_16", "torch_fp16", "nn_16", "nn_fp16", "linalg_fp16")
    widest = names("torch_need_autocast_promote", "torch_expect_builtin_promote")
    full = names("torch_fp32", "nn_fp32")
    assert {name for name in half if policy(name, device) != "half"} == set()
    assert {name for name in full if policy(name, device) != "float32"} == set()
    assert {name for name in widest if policy(name, device) != "inputs"} == set()


def test_calls_are_named_where_they_stand():
    names = []
    sites = CallSites()

    def note(func, args, kwargs, result):
        caller = sys._getframe(1).f_back  # beyond the dispatch mode
        names.append((func._schema.name, sites.called_by(caller)))

    x = torch.ones(3, 3)
    with OpStream(note):
        (
            x.cumsum(0)
            + F.cosine_similarity(
                x,
                x * 2,  # ü
            ).sum()
            - x @ x
        )
        F.l1_loss(x, x)
    called = [name for _, name in names]
    assert called[0] == "cumsum"
    assert "cosine_similarity" in called
    assert ("aten::mm", "") in names
    assert names[-1][1] == "l1_loss"


# --- the figures

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)


@settings(max_examples=60)
@given(hnp.arrays("float32", st.integers(0, 40), elements=FLOATS))
def test_shares_are_what_a_cast_to_float16_loses(values):
    tensor = torch.from_numpy(values)
    found = spread(tensor)
    finite = tensor[tensor.isfinite()]
    rest = finite[finite != 0]
    half = rest.half()
    edge = int((rest.abs() == TINY).sum())  # rounds to even, which is 0, and is counted above it
    assert found.n_nonzero == len(rest)
    assert found.n_zero == int((tensor == 0).sum())
    assert found.n_nonfinite == len(tensor) - len(finite)
    assert found.largest == (float(finite.abs().max()) if len(finite) else 0.0)
    assert found.n_between(-999, -26) == int((half == 0).sum()) - edge
    assert found.n_between(-25, -15) - edge == int(((half != 0) & (rest.abs() < NORMAL)).sum())


@settings(max_examples=30)
@given(
    hnp.arrays("float64", st.integers(1, 30), elements=st.floats(-1e300, 1e300)),
    st.sampled_from(
        [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2]
    ),
)
def test_every_dtype_has_its_values_counted(values, dtype):
    tensor = torch.from_numpy(values).to(dtype)
    (part,) = values_of(tensor)
    assert part.numel() == tensor.numel() * (1 + dtype.is_complex)
    found = spread(part)
    exact = part.double()
    rest = exact[exact.isfinite() & (exact != 0)]
    exponents = rest.frexp().exponent - 1
    assert found.n_nonzero == len(rest)
    assert found.n_between(0, 999) == int((exponents >= 0).sum())
    assert found.n_between(-999, -15) == int((exponents <= -15).sum())


def test_large_tensors_are_counted_in_pieces(monkeypatch):
    monkeypatch.setattr("nbinspect.numerics.exponents._CHUNK", 10)
    tensor = torch.arange(-50.0, 53.0).reshape(103, 1).expand(103, 2)
    found = spread(tensor)
    assert (found.n_nonzero, found.n_zero, found.largest) == (204, 2, 52.0)


def test_room_per_operation_module_and_phase():
    model = nn.Sequential(linear(), nn.Sequential(nn.ReLU(), linear(100)))

    def step():
        model(torch.ones(4, 8)).sum().backward()

    report = watched(step)
    modules = {one.module for one in report.ops if one.op == "aten.addmm"}
    assert modules == {"model.0", "model.1.1"}
    assert {one.phase for one in report.ops} == {"forward", "backward"}
    product = next(o for o in report.ops if o.op == "aten.mm" and o.module == "model.1.1")
    assert product.where.text == "model(torch.ones(4, 8)).sum().backward()"
    with torch.no_grad():
        out = model(torch.ones(4, 8)).abs().max().item()
    last = next(o for o in report.ops if (o.op, o.module) == ("aten.addmm", "model.1.1"))
    assert last.largest == pytest.approx(out)
    assert last.fp16_factor == pytest.approx(65504 / out)
    assert 2**last.fp16_powers == pytest.approx(65504 / out)
    assert 2**last.bf16_powers == pytest.approx(torch.finfo(torch.bfloat16).max / out)
    assert (last.n_calls, last.n_values, last.runs_in) == (1, 32, "float16")


@pytest.mark.parametrize("factor", [1.0, 1e-6, 1e5])
def test_loss_scale_holds_in_a_real_float16_run(factor):
    """At the highest scale no gradient overflows, at the next one does; the lowest loses little."""

    def gradients(scale):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
        with torch.autocast("cpu", torch.float16):
            loss = F.mse_loss(model(torch.randn(64, 16)), torch.ones(64, 4)) * factor
        (loss * scale).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    def plain():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
        (F.mse_loss(model(torch.randn(64, 16)), torch.ones(64, 4)) * factor).backward()

    scale = watched(plain).scale
    assert isinstance(scale, LossScale)
    assert gradients(2.0**scale.highest_log2).isfinite().all()
    assert not gradients(2.0 ** (scale.highest_log2 + 1)).isfinite().all()
    assert (gradients(2.0**scale.lowest_log2) == 0).float().mean() < 0.01


def test_the_scale_of_a_gradscaler_is_taken_out():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step():
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(4, 8)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    scaled = watched(step).scale
    model = linear()
    plain = watched(lambda: model(torch.ones(4, 8)).square().mean().backward()).scale
    assert scaled.ran_at == 1024.0
    assert scaled.largest == pytest.approx(plain.largest) == 1.0  # the loss is float16 itself
    assert scaled.highest_log2 == plain.highest_log2 == 15
    assert scaled.flushed_unscaled == pytest.approx(plain.flushed_unscaled)


def test_no_gradients_no_scale():
    with torch.no_grad():
        report = watched(lambda: linear()(torch.ones(4, 8)))
    assert report.scale.reason == "no backward operation would run in float16"
    assert "not known" in report.text()


def test_gradients_that_are_all_zero_are_told_from_none():
    def solved():
        answers = torch.arange(5)
        logits = torch.nn.functional.one_hot(answers).float() * 1e3
        weight = torch.eye(5, requires_grad=True)
        torch.nn.functional.cross_entropy(logits @ weight, answers).backward()

    assert watched(solved).scale.reason == "every gradient is 0 already"


# --- what it must not do, and what it cannot see


@pytest.mark.parametrize("name", MODELS)
def test_results_are_bit_identical(name):
    plain, seen = Training(name), Training(name)
    torch.manual_seed(7)
    losses = [plain.step() for _ in range(2)]
    expected = plain.state()
    torch.manual_seed(7)
    with HeadroomWatch():
        got = [seen.step() for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(losses, got, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(expected, seen.state(), strict=True))


def test_keeps_nothing_alive_and_leaves_nothing_behind():
    refs = []

    def step():
        layer = linear()
        value = layer(torch.ones(4, 8, requires_grad=True))
        refs.extend([weakref.ref(value), weakref.ref(layer)])
        value.sum().backward()

    with HeadroomWatch() as watch:
        step()
        assert [ref() for ref in refs] == [None, None]
    assert _get_current_dispatch_mode_stack() == []
    assert watch.report.n_ops


def test_an_error_goes_on_and_the_watch_reports():
    with pytest.raises(RuntimeError, match="mat1 and mat2"), HeadroomWatch() as watch:
        linear()(torch.ones(4, 8)) @ torch.ones(3, 3)
    assert watch.report.error == "RuntimeError"
    assert "ended early, by RuntimeError" in watch.report.text()
    with pytest.raises(ZeroDivisionError):
        headroom(lambda: 1 / 0)


def test_a_call_with_arguments():
    report = headroom(lambda x, *, factor: x * factor, torch.ones(3), factor=5)
    assert [(one.op, one.largest) for one in report.ops] == [("aten.mul", 5.0)]
    with pytest.raises(RuntimeError, match="not ended"):
        HeadroomWatch().report


def jagged():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged) * 2


def odd_values():
    dense = torch.eye(4) * 7
    yield "complex", lambda: torch.full((3,), 3 - 4j) * 2
    yield "sparse", lambda: dense.to_sparse() * 2
    yield "sparse csr", lambda: dense.to_sparse_csr() * 2
    yield "nested", lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2
    yield "float8", lambda: dense.to(torch.float8_e4m3fn)
    yield "integers", lambda: torch.arange(5) * 2
    yield "meta", lambda: torch.ones(3, device="meta") * 2
    yield "quantized", lambda: torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8).relu()
    yield "empty", lambda: torch.ones(0, 3) * 2
    yield "nothing", lambda: None
    yield "vmap", lambda: torch.func.vmap(torch.sin)(torch.ones(3))
    yield "func.grad", lambda: torch.func.grad(lambda x: x.pow(3).sum())(torch.ones(3))
    keeps = pytest.mark.keeps_tensors(reason="torch keeps one jagged tensor for its own use")
    yield pytest.param("jagged", jagged, marks=keeps)
    yield "bool", lambda: torch.ones(3) > 0
    yield "float64", lambda: torch.ones(3, dtype=torch.float64) * 1e300


@pytest.mark.filterwarnings("ignore")  # of prototypes, and of quantization's end
@pytest.mark.parametrize(
    ("name", "body"), list(odd_values()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_odd_tensors(name, body):
    report = watched(body)
    assert not [what for what, _ in report.skipped if what.startswith("unreadable")]
    assert HeadroomReport.from_dict(report.to_dict()) == report
    assert report.text()
    assert report.html()
    largest = max((one.largest for one in report.ops), default=None)
    expected = {"complex": 8.0, "sparse": 14.0, "nested": 2.0, "jagged": 2.0, "float8": 7.0}
    if name in expected:
        assert largest == expected[name]
    if name in ("meta", "quantized", "integers"):
        what = "without data" if name == "meta" else "integer or bool"
        assert what in dict(report.skipped)


COMPILED = """
import torch, nbinspect
compiled = torch.compile(lambda x: (x * 1e6).sin().sum(), backend="aot_eager")
x = torch.randn(100)
expected = compiled(x)
frames = torch._dynamo.utils.counters["frames"]["total"]
report = nbinspect.headroom(lambda: compiled(x) * 2)
assert torch._dynamo.utils.counters["frames"]["total"] == frames
assert any("Compiled functions" in note for note in report.notes), report.notes
assert torch.equal(compiled(x), expected)
"""


def test_tensors_without_bytes_are_not_read():
    """Autograd's zeros have no memory, and a freed storage has none left."""
    step = torch.ones(3, requires_grad=True).sgn().sum().backward
    assert dict(watched(step).skipped)["without data"]
    assert values_of(torch._efficientzerotensor((3,))) == "without data"
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    assert values_of(freed) == "without data"


def test_compiled_functions_run_as_compiled_and_are_said_to_be_opaque():
    # In a process of its own: compiling leaves much behind in torch.
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_checkpoint_is_counted_once():
    model = nn.Sequential(linear(), nn.Sigmoid(), linear(), nn.Sigmoid())

    def step(run):
        run(torch.ones(4, 8, requires_grad=True)).sum().backward()

    plain = watched(lambda: step(model))
    again = watched(lambda: step(lambda x: checkpoint(model, x, use_reentrant=False)))
    assert op(plain, "sigmoid").n_calls == op(again, "sigmoid").n_calls == 1
    assert op(plain, "mm", "backward").runs_in == op(again, "mm", "backward").runs_in
    assert any("checkpoint" in note for note in again.notes)


def test_phases_of_optimizers_and_closures():
    model = linear()

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        return loss

    for optimizer in (
        torch.optim.Adam(model.parameters()),
        torch.optim.LBFGS(model.parameters(), max_iter=2),
    ):
        report = watched(lambda step=optimizer.step: step(closure))
        phases = {}
        for one in report.ops:
            phases.setdefault(one.op, set()).add(one.phase)
        assert phases["aten.addmm"] == {"forward"}
        assert phases["aten.mm"] == {"backward"}
        assert any("optimizer" in found for found in phases.values())


def test_what_ran_in_float16_is_said():
    def step():
        with torch.autocast("cpu", torch.float16):
            linear(1e5)(torch.ones(4, 8))

    report = watched(step)
    assert report.first_overflow.op == "aten.addmm"
    assert "float16 already" in report.text()


def test_the_text_says_it_plainly():
    text = watched(lambda: linear(1e5)(torch.ones(4, 8))).text()
    assert "`aten.addmm` in `Linear`" in text
    assert re.search(r"times\sthe\slargest\sfloat16\s\(65504\)", text)
    assert 'torch.autocast("cpu", torch.bfloat16)' in text


def test_public_names():
    assert nbinspect.headroom is headroom
    assert isinstance(headroom(torch.ones, 3), nbinspect.HeadroomReport)
