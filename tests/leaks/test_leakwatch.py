"""What grows is found, named and let go; what does not grow raises no alarm."""

from __future__ import annotations

import gc

import pytest
import torch
from growing import Grower
from growth_cases import CASES, HEAD, Case
from hypothesis import given, settings
from hypothesis import strategies as st

import nbinspect
from nbinspect.leaks import LeakReport
from nbinspect.leaks.owners import by_container, item_of, pieces


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_growth_is_named_and_its_mend_frees_it(grower: Grower, case: Case) -> None:
    found = grower.ask(HEAD + case.code, n=4)
    assert found.error == ""
    report = found.report
    assert not report["healthy"]
    first = next((one for one in report["growths"] if one["holder"].startswith(case.holder)), None)
    assert first is not None, found.text
    assert (first["pattern"], first["state"]) == (case.pattern, case.state), found.text
    if case.per_run is not None:
        assert first["bytes_per_run"] == case.per_run
    assert first["items_per_run"] == case.items or not case.items
    assert case.line in ((first["where"] or {}).get("text") or "")
    assert case.says == tuple(part for part in case.says if part in first["mend"])
    assert first["chain"]
    if case.frees:
        grown = sum(one["bytes_per_run"] for one in report["growths"]) * 3
        assert found.freed_bytes >= grown * 0.9, (first["code"], found.text)


HEALTHY = """
model = nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Dropout(), nn.Linear(50, 2))
x, y = torch.randn(64, 20), torch.randint(0, 2, (64,))
data = torch.utils.data.TensorDataset(x, y)
losses = []
def train(optimizer, batches=None, accumulate=1, scaler=None, amp=False):
    for number, (a, b) in enumerate(batches or [(x, y)] * 4):
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            loss = nn.functional.cross_entropy(model(a), b) / accumulate
        (scaler.scale(loss) if scaler else loss).backward()
        if (number + 1) % accumulate == 0:
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
"""
LOOPS = {
    "sgd": "o = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)\ndef run(): train(o)",
    "adam": "o = torch.optim.Adam(model.parameters())\ndef run(): train(o)",
    "amp": (
        "o, s = torch.optim.Adam(model.parameters()), torch.amp.GradScaler('cpu')\n"
        "def run(): train(o, scaler=s, amp=True)"
    ),
    "accumulation": (
        "o = torch.optim.SGD(model.parameters(), 0.1)\ndef run(): train(o, accumulate=4)"
    ),
    "evaluation": (
        "def run():\n    global accuracy\n    model.eval()\n    with torch.no_grad():\n"
        "        found = torch.cat([model(x) for _ in range(3)])\n"
        "    accuracy = (found.argmax(1) == y.repeat(3)).float().mean()\n    model.train()"
    ),
    "loader with 2 workers": (
        "l = torch.utils.data.DataLoader(data, 16, num_workers=2, shuffle=True)\n"
        "o = torch.optim.Adam(model.parameters())\ndef run(): train(o, l)"
    ),
    "globals": (
        "o = torch.optim.AdamW(model.parameters())\ndef run():\n    global out, loss, batch\n"
        "    batch = [x + 1, x + 2]\n    out = model(batch[0])\n    loss = out.square().mean()\n"
        "    loss.backward()\n    o.step()\n    o.zero_grad()"
    ),
    "a window of the last three, and a best state": (
        "import collections, copy\nlast = collections.deque(maxlen=3)\nn = 0\ndef run():\n"
        "    global n, best\n    n += 1\n    last.append(torch.ones(100))\n"
        "    if n % 4 == 0: best = copy.deepcopy(model.state_dict())"
    ),
    "a cache that fills": (
        "cache, n = {}, 0\ndef run():\n    global n\n    n += 1\n    cache[n % 3] = torch.ones(100)"
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_healthy_loops_raise_no_alarm_over_20_repetitions(grower: Grower, name: str) -> None:
    found = grower.ask(HEAD + HEALTHY + LOOPS[name], n=20, mend=False)
    assert found.error == ""
    assert found.report["healthy"], found.text
    assert found.report["growths"] == []
    assert found.text.startswith("Nothing grows over 20 repetitions.")


LEAKY_LOADER = HEALTHY + (
    "seen = []\nclass Data(torch.utils.data.Dataset):\n    def __len__(self): return 8\n"
    "    def __getitem__(self, i):\n        seen.append(torch.ones(100))\n        return x[i], y[i]\n"
    "loader = torch.utils.data.DataLoader(Data(), 4)\n"
    "optimizer = torch.optim.Adam(model.parameters())\ndef run(): train(optimizer, loader)"
)
HOOKED = HEALTHY + (
    "seen = []\nmodel[0].register_forward_hook(lambda m, i, o: seen.append(o.detach()))\n"
    "loader = torch.utils.data.DataLoader(data, 16)\n"
    "optimizer = torch.optim.Adam(model.parameters())\ndef run(): train(optimizer, loader)"
)
GRAPHS = HEALTHY + (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.fc, self.cache = nn.Linear(20, 2), []\n    def forward(self, x):\n"
    "        y = self.fc(x).exp()\n        if torch.is_grad_enabled(): self.cache.append(y)\n"
    "        return y\nmodel = Net()\nloader = torch.utils.data.DataLoader(data, 16)\n"
    "optimizer = torch.optim.Adam(model.parameters())\ndef run(): train(optimizer, loader)"
)
OWN_LIST = HEALTHY + (
    "kept = []\nloader = torch.utils.data.DataLoader(data, 16)\n"
    "optimizer = torch.optim.Adam(model.parameters())\n"
    "def run():\n    train(optimizer, loader)\n    kept.append(model(x))"
)


@pytest.mark.parametrize(
    ("code", "part", "suspect"),
    [
        (LEAKY_LOADER, "loader", "the loader"),
        (HOOKED, "forward", "the model or its hooks"),
        (GRAPHS, "forward and backward", "gradients or graphs"),
        (OWN_LIST, "whole step", "the loop's own code"),
    ],
    ids=["loader", "hooks", "graphs", "the loop"],
)
def test_the_part_that_grows_is_told_apart(
    grower: Grower, code: str, part: str, suspect: str
) -> None:
    found = grower.ask(HEAD + code, n=3, mend=False, isolate=True)
    assert found.error == ""
    rows = {row["part"]: row for row in found.report["by_part"]}
    assert list(rows) == ["loader", "forward", "forward and backward", "whole step"]
    assert rows[part]["suspect"].startswith(suspect), found.text
    assert [name for name, row in rows.items() if row["suspect"]] == [part]


def test_taking_apart_puts_everything_back():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout())
    loader = [(torch.ones(3, 4), torch.ones(3))]
    model(torch.randn(3, 4)).sum().backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [one.grad.clone() for one in model.parameters()]
    rng = torch.get_rng_state()
    report = nbinspect.leakwatch(
        lambda: None, 2, isolate=True, model=model, loader=loader, warmup=0
    )
    assert [row.part for row in report.by_part] == [
        "loader",
        "forward",
        "forward and backward",
        "whole step",
    ]
    assert report.healthy
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(
        torch.equal(one.grad, grad) for one, grad in zip(model.parameters(), grads, strict=True)
    )


def test_a_part_that_cannot_be_run_says_why():
    report = nbinspect.leakwatch(
        lambda: None, 2, isolate=True, model=torch.nn.Linear(4, 4), loader=[torch.ones(3, 5)]
    )
    forward = next(row for row in report.by_part if row.part == "forward")
    assert isinstance(forward.bytes_per_run, nbinspect.Unavailable)
    assert "could not be run alone: RuntimeError" in report.text()


def test_the_result_is_the_plain_loops():
    def train(repeat) -> list[float]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
        )
        optimizer = torch.optim.Adam(model.parameters())
        losses = []

        def step() -> None:
            loss = model(torch.randn(16, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

        repeat(step)
        return [*losses, *(one.sum().item() for one in model.parameters()), torch.rand(1).item()]

    plain = train(lambda step: [step() for _ in range(4)] and None)
    assert train(lambda step: nbinspect.leakwatch(step, 3)) == plain


def test_nothing_is_collected_unless_asked():
    class Cyclic:
        def __init__(self) -> None:
            self.me, self.weights = self, torch.ones(1000)

    gc.disable()
    try:
        runs = []
        report = nbinspect.leakwatch(lambda: runs.append(Cyclic() and 1), 3)
        assert [one.state for one in report.growths] == ["garbage"]
        assert isinstance(report.collected_bytes, nbinspect.Unavailable)
        assert sum(type(one).__name__ == "Cyclic" for one in gc.get_objects()) == 4
        report = nbinspect.leakwatch(lambda: runs.append(Cyclic() and 1), 3, collect=True)
        assert report.collected_bytes == 4 * 4000
    finally:
        gc.enable()
        gc.collect()


def test_an_error_goes_on_as_it_is():
    error, runs = ValueError("mine"), []

    def fn() -> None:
        runs.append(1)
        if len(runs) == 3:
            raise error

    with pytest.raises(ValueError, match="mine") as caught:
        nbinspect.leakwatch(fn, 5)
    assert caught.value is error
    del caught
    error.__traceback__ = None


@pytest.mark.parametrize(("n", "warmup"), [(1, 1), (0, 1), (5, -1)])
def test_bad_numbers(n, warmup):
    with pytest.raises(ValueError, match=r"n must be at least 2|warmup must not"):
        nbinspect.leakwatch(lambda: None, n, warmup=warmup)


def test_the_record_goes_through_json_and_escapes():
    kept = {}

    def fn() -> None:
        kept[f"<script>{len(kept)}"] = torch.ones(500)

    report = nbinspect.leakwatch(fn, 3)
    assert not report.healthy
    assert LeakReport.from_dict(report.to_dict()) == report
    assert "<script>" not in report.html()
    assert report.bytes_per_run == 2000
    kept.clear()


names = st.from_regex(r"[a-z]{1,4}", fullmatch=True)
keys = st.one_of(
    st.integers(0, 99).map(lambda n: f"[{n}]"),
    st.text(max_size=4).map(lambda t: f"[{t!r}]"),
    names.map(lambda n: f"[{n}.w]"),
)
paths = st.lists(st.one_of(names.map(lambda n: f".{n}"), keys), max_size=4).map("".join)


@given(names, paths)
@settings(max_examples=100)
def test_the_pieces_of_a_name_are_the_name(root, path):
    assert "".join(pieces(root + path)) == root + path


@given(names, paths, st.sets(st.integers(0, 99), min_size=2), paths)
@settings(max_examples=100)
def test_items_of_one_container_are_told_as_that_container(root, path, numbers, below):
    owners = [f"{root}{path}[{n}]{below}" for n in numbers]
    assert by_container(owners, str) == {root + path: owners} or path.endswith("]")
    (holder,) = by_container(owners, str)
    assert {item_of(owner, holder) for owner in owners} == {f"[{n}]" for n in numbers}
