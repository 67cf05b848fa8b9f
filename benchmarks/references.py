"""How fast is the answer to "who keeps this alive", and how often does each tool have one?"""

from __future__ import annotations

import gc
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from benchmarks.fresh import in_process
from benchmarks.tables import Spread, Table, verdict

BLIND = "blind"
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
    n_blind = sum(theirs == BLIND for _, _, theirs in found)
    table.notes.append(
        f"objgraph's answer is find_backref_chain's, up to a module; it is blind in {n_blind} of "
        f"{len(found)}. What is planted is in tests/referrers/kept_alive.py, where the tests hold "
        "nbinspect's answers against what was planted."
    )
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
    import torch

    from tests.referrers.kept_alive import TRAINING

    names = vars(sys.modules["__main__"])
    names.update(torch=torch, nn=torch.nn, weakref=weakref)
    warnings.filterwarnings("ignore", module="torch|cell")
    before, rows = set(names), []
    for case in TRAINING:
        gc.disable()
        exec(compile(case.code, "cell.py", "exec"), names)
        rows.append((case.name, _ours(names["probe"]), _theirs(names["probe"])))
        for name in set(names) - before:
            del names[name]
        gc.enable()
        gc.collect()
    return rows


def _ours(probe: Callable[[], Any]) -> str:
    import nbinspect

    chains = nbinspect.refchain(probe(), name="it").chains
    return str(chains[0]) if chains else BLIND


def _theirs(probe: Callable[[], Any]) -> str:
    import objgraph

    chain = objgraph.find_backref_chain(probe(), objgraph.is_proper_module)
    if not chain or chain[0] is None:
        return "it is gone: objgraph collects before it looks"
    if len(chain) < 2:
        return BLIND
    first = getattr(chain[0], "__name__", type(chain[0]).__name__)
    return " -> ".join((first, *(type(one).__name__ for one in chain[1:])))
