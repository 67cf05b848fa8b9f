"""How fast is the answer to "who keeps this alive", and how often does each tool have one?"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

from benchmarks.fresh import in_process
from benchmarks.tables import Spread, Table, verdict

GOALS = {"narrow": 1.5, "wide": 10.0}  # times as fast as objgraph


class _Holder:
    """Something of the user's."""


def tables(*, quick: bool) -> list[Table]:
    """Search large heaps, and the places where training code leaves tensors."""
    return [_speed(quick=quick), _limits(quick=quick), _coverage()]


def _speed(*, quick: bool) -> Table:
    columns = ("heap", "nbinspect, s", "objgraph, s", "objgraph / nbinspect", "goal")
    table = Table("references: a search against objgraph.find_backref_chain", columns)
    n_objects, n_times = (50_000, 2) if quick else (1_000_000, 5)
    for shape, goal in GOALS.items():
        pairs = in_process(measure, shape=shape, n_objects=n_objects, n_times=n_times)
        ours, theirs = (Spread.of([pair[i] for pair in pairs]) for i in (0, 1))
        ratio = Spread.of([pair[1] / pair[0] for pair in pairs])
        met = "met" if ratio.median >= goal else "MISSED"
        name = f"{n_objects:,} containers, {shape}"
        table.add(name, ours.show(), theirs.show(), ratio.show(), f"{goal:g}x: {met}")
    table.notes.append(
        "narrow: one chain of containers. wide: 200 holders share the holder. Median [quartiles] of "
        f"{n_times} pairs in one process, in turn; wall time."
    )
    return table


def _limits(*, quick: bool) -> Table:
    table = Table("references: large and cheap cases", ("case", "wall, s", "goal"))
    cases: dict[str, tuple[dict[str, Any], float]] = {
        "a variable, in a fresh process": ({"shape": "variable", "n_objects": 0}, 0.1),
        "5,000,000 containers, wide": ({"shape": "wide", "n_objects": 5_000_000}, 8.0),
        "a graph of 100,000 autograd nodes": ({"shape": "graph", "n_objects": 100_000}, 3.0),
        "total += loss, 1,000,000 times": ({"shape": "graph", "n_objects": 1_000_000}, 3.0),
    }
    for name, (arguments, limit) in cases.items():
        if quick and arguments["n_objects"] > 100_000:
            continue
        pairs = in_process(measure, **arguments, n_times=1 if quick else 3, rival=False)
        spread = Spread.of([pair[0] for pair in pairs])
        table.add(name, spread.show(), verdict(spread.median, limit, " s"))
    return table


def _coverage() -> Table:
    columns = ("held by", "nbinspect", "objgraph")
    table = Table("references: who has an answer", columns)
    found = in_process(answers)
    for name, ours, theirs in found:
        table.add(name, ours, theirs)
    n_blind = sum(theirs == "blind" for _, _, theirs in found)
    table.notes.append(f"objgraph is blind in {n_blind} of {len(found)}.")
    return table


def measure(
    *, shape: str, n_objects: int, n_times: int, rival: bool = True
) -> list[tuple[float, float]]:
    """Time both searches in turn, in a heap of this shape; (ours, theirs) in seconds."""
    import objgraph

    import nbinspect

    target, kept = _heap(shape, n_objects)
    nbinspect.refchain(target())
    pairs = []
    for _ in range(n_times):
        ours = _timed(lambda: nbinspect.refchain(target()))
        theirs = 0.0
        if rival:
            theirs = _timed(
                lambda: objgraph.find_backref_chain(target(), objgraph.is_proper_module)
            )
        pairs.append((ours, theirs))
    del kept
    return pairs


def _timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _heap(shape: str, n_objects: int) -> tuple[Callable[[], Any], Any]:
    """Make a heap; give a weak reference to the tensor that is asked about, and all that lives."""
    import torch

    gc.disable()
    filling = [{"key": [i]} for i in range(0 if shape == "graph" else n_objects // 2)]
    gc.enable()
    if shape == "graph":
        leaf = torch.ones(4, requires_grad=True)
        total = leaf * 1.0
        for _ in range(n_objects):
            total = total + 1.0
        return weakref.ref(leaf), globals().update(kept=total)
    tensor = torch.ones(3)
    chain: Any = [{"inner": [tensor]}]
    if shape == "wide":
        for _ in range(200):
            holder = _Holder()
            holder.shared = chain  # type: ignore[attr-defined]
            filling.append(holder)  # type: ignore[arg-type]
    globals()["kept"] = {"variable": tensor, "narrow": {"outer": (chain,)}, "wide": [filling]}[
        shape
    ]
    return weakref.ref(tensor), filling


def answers() -> list[tuple[str, str, str]]:
    """Ask both tools about tensors that training code leaves behind: (how, ours, theirs)."""
    import objgraph

    import nbinspect

    rows = []
    for name, make in PLANTS.items():
        target = make()
        globals()["asked"] = None
        chain = nbinspect.refchain(target()).chains
        theirs = objgraph.find_backref_chain(target(), objgraph.is_proper_module)
        ours = str(chain[0])[:90] if chain else "blind"
        rows.append((name, ours, f"{len(theirs)} links" if len(theirs) > 1 else "blind"))
        globals()["kept"] = None
        gc.collect()
    return rows


def _keep(value: Any) -> None:
    globals()["kept"] = value


def _saved() -> weakref.ref[Any]:
    import torch

    weight = torch.ones(8, 8, requires_grad=True)
    hidden = weight * 2
    _keep([(hidden * hidden).sum()])
    return weakref.ref(hidden)


def _base() -> weakref.ref[Any]:
    import torch

    table = torch.ones(100, 100)
    _keep(table[0])
    return weakref.ref(table)


def _grad() -> weakref.ref[Any]:
    import torch

    model = torch.nn.Linear(8, 8)
    model(torch.ones(1, 8)).sum().backward()
    _keep(model)
    return weakref.ref(model.weight.grad)  # type: ignore[arg-type]


def _leaf() -> weakref.ref[Any]:
    import torch

    weight = torch.ones(8, requires_grad=True)
    _keep((weight + 1).sum())
    return weakref.ref(weight)


def _closure() -> weakref.ref[Any]:
    import torch

    seen = [torch.ones(8)]
    _keep(lambda: seen)
    return weakref.ref(seen[0])


def _state() -> weakref.ref[Any]:
    import torch

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    _keep((model, optimizer))
    return weakref.ref(optimizer.state[model.weight]["exp_avg"])


PLANTS: dict[str, Callable[[], weakref.ref[Any]]] = {
    "a loss in a list (saved for backward)": _saved,
    "a view": _base,
    "a parameter's gradient": _grad,
    "the graph behind a sum (its leaf)": _leaf,
    "a closure": _closure,
    "an optimizer's state": _state,
}
