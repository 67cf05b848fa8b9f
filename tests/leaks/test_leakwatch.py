"""What grows is found, named and let go; what does not grow raises no alarm."""

from __future__ import annotations

import gc
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import objgraph
import pytest
import torch
from growing import Answer, Grower
from growth_cases import (
    BOUNDED,
    BULK,
    BULK_HOLDERS,
    CASES,
    HEAD,
    PLAIN,
    Case,
    batches,
    together,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import nbinspect
from nbinspect.leaks import Growth, LeakReport
from nbinspect.leaks.counts import ObjectCounts
from nbinspect.leaks.in_order import in_order
from nbinspect.leaks.owners import by_container, item_of, pieces


@pytest.mark.parametrize(
    "cases", batches(CASES), ids=lambda cases: ", ".join(one.name for one in cases)
)
def test_growth_is_named_and_its_mend_frees_it(grower: Grower, cases: list[Case]) -> None:
    found = grower.ask(together(cases), n=4)
    assert found.error == ""
    assert not found.report["healthy"]
    wanted = 0.0
    for case in cases:
        one = growth_of(case, found)
        assert (one["pattern"], one["state"]) == (case.pattern, case.state), found.text
        assert one["bytes_per_run"] == case.per_run or case.per_run is None, found.text
        assert one["items_per_run"] == case.items or not case.items
        assert case.line in ((one["where"] or {}).get("text") or "")
        assert case.says == tuple(part for part in case.says if part in one["mend"])
        root = re.findall(r"\w+", case.holder)[:1] if one["state"] == "live" else []
        assert re.search("|".join(["of thread", *root]), one["chain"]) or not root
        assert one["chain"]
        assert one["code"] or not case.frees
        wanted += 3 * one["bytes_per_run"] * case.frees
    assert found.freed_bytes >= wanted, found.text


@pytest.mark.parametrize(
    "cases",
    batches([case for case in CASES if case.mended]),
    ids=lambda cases: ", ".join(one.name for one in cases),
)
def test_what_the_mend_says_to_write_instead_no_longer_grows(
    grower: Grower, cases: list[Case]
) -> None:
    mended = [replace(case, code=case.mended_code) for case in cases]
    found = grower.ask(together(mended), n=4, mend=False)
    assert found.error == ""
    left = {one["holder"]: one["bytes_per_run"] for one in found.report["growths"]}
    assert left == {case.holder: case.left for case in cases if case.left}, found.text
    assert found.report["healthy"] == (not left)


def growth_of(case: Case, found: Answer) -> dict[str, Any]:
    """Find what was told of a case: by its holder, of cycles without a name by the pattern."""
    for one in found.report["growths"]:
        if one["holder"].startswith(case.holder) and (
            case.holder or one["pattern"] == case.pattern
        ):
            return one
    raise AssertionError(f"{case.name}: {found.text}")


def test_what_the_collector_does_not_follow_is_found_by_the_containers(grower: Grower) -> None:
    found = grower.ask(HEAD + PLAIN, n=4)
    assert found.error == ""
    told = {one["holder"]: one for one in found.report["growths"]}
    assert set(told) == {"arrays", "texts", "files", "by_name"}, found.text
    least = {"arrays": 80_000, "texts": 100_000, "files": 20_000, "by_name": 30_000}
    for name, size in least.items():
        assert size <= told[name]["bytes_per_run"] < 1.5 * size, (name, found.text)
        assert told[name]["code"] == f"{name}.clear()"
    assert told["arrays"]["mend"].startswith("`arrays` keeps 1 more object of type ndarray each")
    assert (told["texts"]["container"], told["texts"]["items_per_run"]) == ("list", 100)


def test_the_counts_are_those_of_objgraph_and_free_nothing():
    class Cyclic:
        def __init__(self) -> None:
            self.me = self

    gc.disable()
    try:
        for _ in range(3):
            Cyclic()
        counts = ObjectCounts()
        counts.count()
        wanted = objgraph.typestats(shortnames=False)
    finally:
        gc.enable()
    told = counts.counts[0]
    assert told[f"{__name__}.Cyclic"] == 3
    for name in ("builtins.module", "builtins.property", "torch.dtype"):
        assert told.get(name) == wanted.get(name)
    # Our own, and types that answer for themselves when asked for their names, are left out.
    usual = ("builtins.", "collections.", "functools.")
    assert set(told) >= {n for n, number in wanted.items() if number > 50 and n.startswith(usual)}
    gc.collect()


@pytest.mark.parametrize(
    ("codes", "kept"),
    [
        (["del x", "del x"], [0]),
        (["del x", "x.clear()"], [0]),
        (["del x.a", "x.a.b.clear()", "x.b.clear()"], [0, 2]),
        (["x.clear()", "x['a'].clear()", "x.clear()"], [0, 2]),
        (["x['a'].clear()", "x['b'].clear()"], [0, 1]),
        (["x.pop('a')", "x.pop('a')", "x['b'].clear()"], [0, 2]),
        (["del x[0]", "del x[1]", "del y[1]"], [0, 2]),
        (["del x['a']", "x['b'] = x['b'].detach()"], [0, 1]),
        (["x = x.detach()", "x = x.detach()", ""], [0, 1]),
        (["%traceback_memory --drop", "import gc; gc.collect()"], [0, 1]),
    ],
)
def test_mends_are_safe_one_after_the_other(codes, kept):
    found = list(in_order([grown(code) for code in codes]))
    assert [n for n, one in enumerate(found) if one.code] == [n for n in kept if codes[n]]
    for code, one in zip(codes, found, strict=True):
        if code and not one.code:
            assert one.mend == f"Do better. `{codes[0]}` lets go of this too."
    names: dict[str, Any] = {"y": [0, 1]}
    names["x"] = SimpleNamespace(a=SimpleNamespace(b=[1]), b=[2]) if "x." in codes[0] else [1, 2]
    if "'" in codes[0] or "x.clear" in codes[0]:
        names["x"] = {"a": [1], "b": [2] if "detach" not in codes[-1] else torch.ones(1)}
    elif "x.detach" in codes[0]:
        names["x"] = torch.ones(1)
    for one in found:
        if not one.code.startswith("%"):
            exec(one.code, names)


def grown(code: str) -> Growth:
    mend = f"Do better. `{code}` lets go of what there is." if code else "Do better."
    where, state = None, "live"
    return Growth(1, 1, 0, "x", "", "OTHER", "cpu", where, "x", mend, code, "", state)


def test_a_process_that_grows_is_not_healthy_and_3_repetitions_are_needed_to_tell(grower):
    growing = (  # memory that Python does not know of
        "import ctypes\nmalloc = ctypes.CDLL(None).malloc\nmalloc.restype = ctypes.c_void_p\n"
        "def run(): ctypes.memset(malloc(ctypes.c_size_t(32 << 20)), 1, 32 << 20)"
    )
    found = grower.ask(HEAD + growing, n=4, mend=False)
    assert found.error == ""
    assert (found.report["growths"], found.report["healthy"]) == ([], False)
    assert found.text.startswith("No tensor and no list grows over 4 repetitions, but the process")
    assert "collector is switched off" in found.text  # it is, for what is planted
    report = nbinspect.leakwatch(lambda: None, 2)
    assert isinstance(report.unexplained_bytes_per_run, nbinspect.Unavailable)
    assert report.healthy


def test_arrays_texts_and_buffers_are_named_wherever_they_are_kept(grower):
    found = grower.ask(HEAD + BULK, n=4)
    assert found.error == ""
    told = {one["holder"]: one for one in found.report["growths"]}
    assert set(told) == set(BULK_HOLDERS), found.text
    for holder, (size, container, item, code) in BULK_HOLDERS.items():
        one = told[holder]
        assert size <= one["bytes_per_run"] < 1.1 * size, (holder, found.text)
        assert (one["container"], one["item"], one["code"]) == (container, item, code), holder
        assert one["items_per_run"] == bool(container and container != "tuple"), holder
        assert one["mend"]
    first = found.text.replace("\n", " ")
    assert re.match(r"\+158 KiB each run: `trainer\..* gets longer\. 18 more grow\.", first)


def test_what_has_a_limit_fills_and_does_not_grow(grower):
    found = grower.ask(HEAD + BOUNDED, n=4, mend=False)
    assert found.error == ""
    assert found.report["healthy"], found.text
    notes = " ".join(found.report["notes"])
    for said in (
        "`replay` still fills, by 1.17 KiB each run: it stops at its `maxlen` of 10\u202f000, with",
        "`mask` still fills, by 400 B each run: it stops at its `maxsize` of 8, with about 3.1",
        "`recent.frames` still fills, by 586 KiB each run: it stops at its `maxlen` of 50, with",
    ):
        assert said in notes
    growing = BOUNDED.replace("maxsize=8", "maxsize=None").replace("maxlen=10_000", "maxlen=10**12")
    found = grower.ask(HEAD + growing, n=4, mend=False)
    assert {one["holder"] for one in found.report["growths"]} == {"mask", "replay"}


def test_to_compile_again_each_time_is_not_healthy(grower):
    again = (
        "n = [0]\ndef run():\n    n[0] += 1\n"
        "    torch.compile(lambda x: x.sin() * n[0], backend='eager')(torch.ones(3))"
    )
    found = grower.ask(HEAD + again, n=3, mend=False)
    assert found.error == ""
    assert (found.report["graphs_per_run"], found.report["healthy"]) == (1, False)
    assert "compiles again in each" in found.text.replace("\n", " ")
    once = "f = torch.compile(lambda x: x.sin(), backend='eager')\ndef run(): f(torch.ones(3))"
    assert grower.ask(HEAD + once, n=3, mend=False).report["healthy"]


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
    "everything at once": """
import collections, copy, random, threading
sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
adam, adamw = torch.optim.Adam(model.parameters()), torch.optim.AdamW(model.parameters())
scaler, n, out, best = torch.amp.GradScaler("cpu"), 0, None, None
last, cache, weak = collections.deque(maxlen=3), {}, weakref.WeakValueDictionary()
filled, average, history, rnn = {}, None, {"loss": [], "text": []}, nn.LSTM(20, 8)
schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda epoch: 0.9**epoch)
hidden = None
@functools.lru_cache(maxsize=4)
def mask(n): return torch.ones(100)
def evaluate():
    global accuracy
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(x) for _ in range(3)])
    accuracy = (found.argmax(1) == y.repeat(3)).float().mean()
    model.train()
def run():
    global n, out, loss, batch, best, average, hidden
    n += 1
    train(sgd)
    train(adam)
    train(sgd, accumulate=4)
    train(adam, scaler=scaler, amp=True)
    schedule.step()
    evaluate()
    batch = [x + 1, x + 2]
    out = model(batch[0])
    loss = out.square().mean()
    loss.backward()
    adamw.step()
    adamw.zero_grad()
    last.append(torch.ones(100))
    cache[n % 3] = filled[min(n, 5)] = torch.ones(100)
    weak[n] = torch.ones(100)
    mask(n)
    if n % 4 == 0: best = copy.deepcopy(model.state_dict())
    average = loss.detach() if average is None else 0.9 * average + 0.1 * loss.detach()
    history["loss"] += [loss.item()] * 20
    history["text"].append("all is well")
    _, hidden = rnn(x[None], hidden)
    hidden = tuple(one.detach() for one in hidden)
    jagged = model(torch.ones(random.randint(2, 500), 20)).sum()
    jagged.backward()
    handle = model[0].register_forward_hook(lambda m, i, o: None)
    handle.remove()
    thread = threading.Thread(target=model, args=(x,))
    thread.start()
    thread.join()
""",
    "loader with 2 workers": (
        "l = torch.utils.data.DataLoader(data, 16, num_workers=2, shuffle=True)\n"
        "kept = torch.utils.data.DataLoader(data, 32, num_workers=1, persistent_workers=True)\n"
        "o = torch.optim.Adam(model.parameters())\ndef run(): train(o, l); train(o, kept)"
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_healthy_loops_raise_no_alarm_over_20_repetitions(grower: Grower, name: str) -> None:
    found = grower.ask(HEAD + HEALTHY + LOOPS[name], n=20, mend=False)
    assert found.error == ""
    assert found.report["healthy"], found.text
    assert found.report["growths"] == []
    assert "grow" in found.text.splitlines()[0]
    assert "over 20 repetitions" in found.text.replace("\n", " ")


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


COPYING = HEALTHY + (
    "class Rows(torch.utils.data.Dataset):\n    def __init__(self):\n"
    "        self.rows = [[number] for number in range(200_000)]\n"
    "    def __len__(self): return 50\n    def __getitem__(self, i):\n"
    "        return torch.tensor([row[0] for row in self.rows[i * 4000:(i + 1) * 4000]])\n"
    "loader = torch.utils.data.DataLoader(Rows(), 1, num_workers=2, persistent_workers=True)\n"
    "def run():\n    return loader"
)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells it")
def test_workers_that_copy_what_they_read_are_told(grower: Grower) -> None:
    found = grower.ask(HEAD + COPYING, n=2, mend=False, isolate=True, warmup=0)
    assert found.error == ""
    row = next(row for row in found.report["by_part"] if row["part"] == "loader")
    assert row["workers_bytes_per_run"] > 1 << 20, found.text
    assert row["suspect"].startswith("the loader's workers: to read a Python object")


def test_workers_whose_memory_cannot_be_read_are_not_said_to_have_none(monkeypatch):
    unknown = nbinspect.Unavailable("the system does not say")
    monkeypatch.setattr("nbinspect.leaks.parts.proportional_bytes", lambda _process: unknown)
    loader = torch.utils.data.DataLoader([1, 2, 3], num_workers=1)
    report = nbinspect.leakwatch(lambda: None, 2, isolate=True, loader=loader)
    assert report.by_part[0].workers_bytes_per_run == unknown
    assert "workers: the system does not say" in report.text()


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
    found = grower.ask(HEAD + code, n=2, mend=False, isolate=True)
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
    (held,) = by_container(owners, str, owners.index)
    assert (held.holder, held.members, held.is_container) == (root + path, owners, True)
    assert {item_of(owner, held.holder) for owner in owners} == {f"[{n}]" for n in numbers}


@pytest.mark.parametrize(
    ("owners", "holders"),
    [
        ("h[0] h[1] h[1] h[1]", {"h": False}),  # a state of two tensors, carried on
        ("m['a'][0] m['b'][0] m['a'][1] m['b'][1]", {"m['a']": True, "m['b']": True}),
        ("net.layers.0.weight net.layers.1.weight", {"net.layers": True}),
        ("found,_an_element found,_an_element", {"found": True}),
        ("c.data[<Ref>][0] c.data[<Ref>][0]", {"c.data": True}),
        ("hook_f_on_net.0 hook_f_on_net.0", {"hook f on net.0": False}),
        ("hook_f_on_net.0 hook_f_on_net.1", {"hook f on net.0": False, "hook f on net.1": False}),
    ],
)
def test_what_gets_longer_is_told_from_what_is_only_carried_on(owners, holders):
    names = [one.replace("_", " ") for one in owners.split()]
    times = iter([0, 0, 1, 2] if names[0].startswith(("h[", "m[")) else [0, 1])
    found = by_container(names, str, lambda _: next(times))
    assert {one.holder: one.is_container for one in found} == holders
