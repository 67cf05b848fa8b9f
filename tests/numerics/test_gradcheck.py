import functools
import math
import random
import sys
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import nbinspect
from nbinspect import GradcheckReport, Unavailable, gradcheck


def product(factor):
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient * w, gradient * x * factor

    parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(
        f"Product{factor}".replace(".", "_").replace("-", "m"), (torch.autograd.Function,), parts
    )


def leaf(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def random_leaf(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


def text(report: GradcheckReport) -> str:
    return " ".join(report.text().split())


def by_name(report: GradcheckReport):
    return {one.name: one for one in report.inputs}


# --- verdicts and entries


@pytest.mark.parametrize(
    ("name", "fn", "values"),
    [
        ("sum", lambda x: x.sum(), (random_leaf(3),)),
        ("product", lambda x, w: x @ w, (random_leaf(2, 3), random_leaf(3, 2))),
        ("several outputs", lambda x: (x.sin(), x.cos().sum()), (random_leaf(4),)),
        ("dictionary", lambda x: {"a": x.exp(), "n": 3}, (random_leaf(4),)),
        ("a list of arguments", lambda xs: xs[0] * xs[1], ([random_leaf(2), random_leaf(2)],)),
        ("complex", lambda z: z.abs().sum(), (random_leaf(3, dtype=torch.complex64),)),
        ("complex output", lambda x: torch.fft.fft(x), (random_leaf(4),)),
        ("half precision", lambda x: x.sigmoid(), (random_leaf(4, dtype=torch.float16),)),
        ("float64", lambda x: x.tanh(), (random_leaf(4, dtype=torch.float64),)),
        ("expanded", lambda x: x.sin(), (random_leaf(1).expand(3),)),
        ("an index", lambda x, i: x[i], (random_leaf(5), torch.tensor([1, 1, 3]))),
        ("transposed", lambda x: x * torch.arange(6.0).view(3, 2), (random_leaf(2, 3).t(),)),
        (
            "right custom function",
            lambda x, w: product(1.0).apply(x, w),
            (random_leaf(3), random_leaf(3)),
        ),
    ],
)
def test_right_gradients_pass_as_torch_says(name, fn, values):
    report = gradcheck(fn, values)
    assert report.passed is True, text(report)
    assert report.ok
    assert all(one.agrees for one in report.entries)
    assert report.message == ""
    for one in report.inputs:
        assert one.n_checked == one.n_values
        assert one.analytic == pytest.approx(one.numeric, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (2.0, "2 times what it should be"),
        (-1.0, "wrong sign"),
        (0.0, "backward gives 0"),
        (math.nan, "NaN"),
    ],
)
def test_a_wrong_custom_function_is_named_with_the_entry_and_the_cause(factor, said):
    wrong = product(factor)
    apply = wrong.apply  # a name of its own, as people write it

    def f(x, w):
        return apply(x.sin(), w).exp()

    x, w = leaf(1.0, 2.0), leaf(0.5, -0.3)
    report = gradcheck(f, (x, w))
    assert report.passed is False
    assert report.message
    worst = report.entries[0]
    assert (worst.input, worst.agrees) == ("w", False)
    k = int(worst.index.strip("[]"))
    right = float(
        x[k].detach().double().sin() * (x[k].detach().double().sin() * w[k].detach().double()).exp()
    )
    assert worst.numeric == pytest.approx(right, rel=1e-5)
    if math.isfinite(factor):
        assert worst.analytic == pytest.approx(factor * right, rel=1e-5, abs=1e-9)
    inputs = by_name(report)
    assert (inputs["x"].n_wrong, inputs["w"].n_wrong) == (0, 2)
    assert said in inputs["w"].cause
    assert [(one.name, one.agrees) for one in report.functions] == [(wrong.__name__, False)]
    assert "has a wrong backward" in text(report)
    assert report.functions[0].where.text == "def backward(ctx, gradient):"


def test_the_wrong_one_of_several_custom_functions():
    right, wrong = product(1.0), product(3.0)

    def f(x, w):
        return right.apply(x, w) + wrong.apply(w, x)

    found = {one.name: one.agrees for one in gradcheck(f, (leaf(1.0), leaf(2.0))).functions}
    assert found == {right.__name__: True, wrong.__name__: False}


def test_an_operation_registered_with_torch_library():
    @torch.library.custom_op("nbinspect_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_autograd(lambda ctx, gradient: gradient * 3)
    report = gradcheck(lambda x: twice(x), leaf(1.0, 2.0))
    assert report.passed is False
    assert "1.5 times" in report.inputs[0].cause
    assert "twice" in report.functions[0].name


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda x: (x * x.detach()).sum(), "0.5 times"),
        (lambda x: x.relu(), "the slope differs on both sides"),
        (lambda x: x.exp().sum(), "float64 loses a small step"),
        (lambda x: x + (x.round() - x).detach(), ""),
    ],
)
def test_causes(fn, said):
    values = {"0.5 times": (1.0, 3.0), "the slope differs on both sides": (0.0, 1.0)}
    report = gradcheck(fn, leaf(*values.get(said, (1.0, 100.0))))
    if said:
        assert report.passed is False
        assert said in report.inputs[0].cause
        if said != "0.5 times":
            assert "cannot be checked here" in text(report)


def test_straight_through():
    report = gradcheck(lambda x: x.round() + x - x.detach(), leaf(1.2, 2.3))
    assert "straight-through" in report.inputs[0].cause


def test_where_nothing_can_be_differentiated():
    report = gradcheck(lambda x: x.sum().item(), leaf(1.0))
    assert isinstance(report.passed, Unavailable)
    assert "not checked" in text(report)
    with pytest.raises(ValueError, match="no floating-point argument or parameter"):
        gradcheck(lambda n: n, (3,))


def test_without_any_that_requires_gradients_all_are_taken():
    report = gradcheck(lambda x, w: x * w, (torch.ones(2), torch.ones(2)))
    assert set(by_name(report)) == {"x", "w"}
    assert "No argument requires gradients" in text(report)


# --- modules and the variables of functions


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(), nn.Linear(4, 2)
    )


def test_parameters_of_a_module_are_checked_and_nothing_of_it_changes():
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    versions = [p._version for p in model.parameters()]
    report = gradcheck(model, torch.randn(5, 3))
    assert report.ok, text(report)
    assert set(by_name(report)) == {f"model.{name}" for name, _ in model.named_parameters()}
    assert all(one.is_parameter for one in report.inputs)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [p._version for p in model.parameters()] == versions
    assert [p.grad for p in model.parameters()] == [None] * 6
    assert "It draws random numbers" in text(report)


def test_a_function_uses_copies_of_the_modules_and_tensors_it_names():
    model, target, scales = network(), torch.randn(5, 2), [leaf(2.0)]
    seen = set()

    def loss(x):
        seen.add(x.dtype)
        return helper(x) * scales[0]

    def helper(x):
        return F.mse_loss(model(x), target)

    report = gradcheck(loss, random_leaf(5, 3))
    assert report.ok, text(report)
    assert {"x", "scales[0]", "model.0.weight"} <= set(by_name(report))
    assert seen == {torch.float32, torch.float64}
    assert model[0].weight.dtype == torch.float32


@pytest.mark.parametrize("kind", ["method", "partial", "compiled"])
def test_ways_to_name_a_function(kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.constant = torch.full((2,), 3.0)  # no buffer

        def loss(self, x):
            return (self.weight * x.sin() * self.constant).sum()

    net, x = Net(), leaf(1.0, 2.0)
    fn = {
        "method": net.loss,
        "partial": functools.partial(lambda w, x: (w * x).sum(), net.weight),
        "compiled": torch.compile(lambda x: (x * net.weight).sum(), backend="eager"),
    }[kind]
    report = gradcheck(fn, x)
    assert report.ok, text(report)
    assert len(report.inputs) == 2


def test_tied_weights_are_one_tensor():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(2, 2), nn.Linear(2, 2)
            self.decode.weight = self.encode.weight

        def forward(self, x):
            return self.decode(self.encode(x))

    assert gradcheck(Tied(), torch.ones(1, 2)).ok


@pytest.mark.parametrize(
    ("fn", "value", "verdict"),
    [
        (lambda x: (x.to_dense() * 2).sum(), torch.eye(3).to_sparse().requires_grad_(), True),
        (lambda x: x.mul_(2), torch.ones(3), True),  # in place on what the user may change
        (lambda x: x.float() * 2, torch.ones(3).to(torch.float8_e4m3fn), True),
        (nn.Embedding(5, 2, sparse=True), torch.tensor([1, 2]), "no sparse gradients"),
        (lambda x: x.sin(), torch.ones(3, device="meta", requires_grad=True), "meta"),
        (lambda x: x.sum(), torch.ones(0, requires_grad=True), True),
    ],
)
def test_odd_arguments(fn, value, verdict):
    report = gradcheck(fn, value)
    if verdict is True:
        assert report.passed is True, text(report)
    else:
        assert verdict in report.passed.reason
    assert report.html()


def test_nested_arguments_are_left_to_torch():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], requires_grad=True)
    report = gradcheck(lambda x: torch.nested.to_padded_tensor(x * 2, 0.0), nested)
    assert isinstance(report.passed, Unavailable)
    assert report.nonfinite == ()


def test_lazy_modules_are_to_be_called_first():
    with pytest.raises(ValueError, match="call it once first"):
        gradcheck(nn.LazyLinear(3), torch.ones(2, 3))


def test_large_modules_are_sampled_and_it_is_said():
    model = nn.Linear(200, 200)
    report = gradcheck(model, torch.randn(3, 200))
    assert report.ok, text(report)
    assert report.fast_mode
    assert sum(one.n_checked for one in report.inputs) < 40_200
    assert "random directions" in text(report)
    assert "drawn at random" in text(report)


# --- the user's own dtype


def test_what_float64_hides():
    report = gradcheck(lambda x: x.exp(), leaf(100.0))
    assert report.passed is True
    assert not report.ok
    first = report.nonfinite[0]
    assert (first.what, first.n_bad, first.value) == ("output", 1, math.inf)
    assert (report.born_at.op, report.born_at.phase) == ("aten.exp", "forward")
    assert "x.exp()" in report.born_at.where.text
    assert "float64 hides it" in text(report)


def test_a_gradient_that_is_nan_only_in_backward():
    report = gradcheck(lambda x: (x - x.detach() + 1e-30).sqrt(), leaf(1.0), atol=1e20)
    assert report.nonfinite == () or report.nonfinite[0].what == "gradient of x"
    report = gradcheck(lambda x: (x * 0).sqrt() * 0 + x, leaf(1.0))
    assert [one.what for one in report.nonfinite] == ["gradient of x"]
    assert report.born_at.phase == "backward"
    assert "sqrt" in report.born_at.why
    assert report.born_at.mend


def test_loss_of_digits_is_said():
    report = gradcheck(lambda x: ((x + 1e4) - 1e4).pow(3), leaf(1e-3))
    assert report.passed is True
    assert report.inputs[0].own_dtype_error > 0.01
    assert "loses digits" in text(report)


def test_a_function_that_casts_down_is_checked_with_wider_steps():
    report = gradcheck(lambda x: x.float().pow(3), leaf(1.0, 2.0))
    assert report.passed is True
    assert report.eps == 1e-3
    assert "casts to float32" in text(report)


# --- promises


def test_nothing_is_left_changed():
    x = leaf(1.0, 2.0)
    x.grad = torch.ones(2)
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    expected = torch.rand(2), random.random(), np.random.rand()
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)

    def f(x):
        x = x * torch.rand(2) + random.random() + np.random.rand()
        return F.dropout(x)

    with torch.no_grad():
        report = gradcheck(f, x)
        assert not torch.is_grad_enabled()
    got = torch.rand(2), random.random(), np.random.rand()
    assert torch.equal(expected[0], got[0])
    assert expected[1:] == got[1:]
    assert report.passed is True
    assert torch.equal(x, torch.tensor([1.0, 2.0]))
    assert torch.equal(x.grad, torch.ones(2))
    assert torch.get_default_dtype() == torch.float32
    assert _get_current_dispatch_mode_stack() == []
    assert sys.getprofile() is None


@pytest.mark.parametrize("when", [1, 2, 5])
def test_an_error_or_interrupt_leaves_nothing(when):
    calls = []

    def f(x):
        calls.append(1)
        if len(calls) == when:
            raise KeyboardInterrupt
        return x.sin()

    x = leaf(1.0)
    with pytest.raises(KeyboardInterrupt):
        gradcheck(f, x)
    assert torch.get_default_dtype() == torch.float32
    assert _get_current_dispatch_mode_stack() == []
    assert sys.getprofile() is None


def test_an_error_of_the_function_is_its_own():
    with pytest.raises(RuntimeError, match="size"):
        gradcheck(lambda x: x @ torch.ones(7), leaf(1.0))
    report = gradcheck(lambda x: x[None] @ Holder.weight, leaf(1.0))
    assert isinstance(report.passed, Unavailable)
    assert "in float64 it raises RuntimeError" in report.passed.reason


class Holder:
    weight = torch.ones(1, 1)  # an attribute of an object, which is not copied


def test_keeps_nothing_alive():
    def check():
        x, model = leaf(1.0), nn.Linear(1, 1)
        return gradcheck(lambda x: model(x), x), [weakref.ref(x), weakref.ref(model)]

    report, refs = check()
    assert [ref() for ref in refs] == [None, None]
    assert report.passed is True


@pytest.mark.parametrize("passes", [True, False])
def test_records_go_through_json_and_every_rendering(passes):
    report = gradcheck(product(1.0 if passes else 2.0).apply, (leaf(1.0), leaf(2.0)))
    assert GradcheckReport.from_dict(report.to_dict()) == report
    assert "torch.autograd.gradcheck" in text(report)
    assert "<script" not in report.html()
    assert report.png()


def test_names_from_the_user_are_escaped():
    report = gradcheck(lambda x: x, leaf(1.0), name="<script>f", names={0: "<b>x"})
    assert "<script>f" not in report.html()
    assert "<b>x" not in report.html()


def test_public_names():
    assert nbinspect.gradcheck is gradcheck


def test_a_function_that_is_nan_there_is_not_said_to_have_a_wrong_gradient() -> None:
    w = torch.tensor([-1.0, -4.0], requires_grad=True)
    report = gradcheck(lambda w: w.sqrt(), w, name="f")
    assert text(report).startswith(
        "`f` is not finite here, so its gradient cannot be compared: a small step from `w[0]` gives NaN."
    )
