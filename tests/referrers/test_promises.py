"""What the reference search promises whatever it is asked."""

from __future__ import annotations

import gc
import random
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from nbinspect import refchain

FEW = settings(max_examples=15)


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """The global names of the running program; what a test adds is taken away again."""
    names = vars(sys.modules["__main__"])
    before = set(names)
    yield names
    for name in set(names) - before:
        del names[name]


class Counting(TorchDispatchMode):
    """A dispatch mode of the user's, which must see nothing of the search."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.calls += 1
        return func(*args, **(kwargs or {}))


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "dispatch mode": Counting,
}


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS.keys())
@pytest.mark.parametrize("was_on", [True, False])
def test_it_leaves_everything_as_it_was(
    names: dict[str, Any],
    context: Callable[[], AbstractContextManager[Any]],
    was_on: bool,
) -> None:
    x = torch.ones(10, requires_grad=True)
    names["planted"] = [x.exp()]
    names["loss_planted"] = names["planted"][0].exp().sum()
    probe: Callable[[], Any] = weakref.ref(names["planted"][0])
    garbage: list[Any] = [Plain()]
    waiting = weakref.ref(garbage[0])
    garbage.append(garbage)
    gc.disable()
    try:
        del garbage
        if was_on:
            gc.enable()
        state, rng = torch.get_rng_state(), random.getstate()
        before = (sys.getrefcount(probe()), probe()._use_count())
        calls = Counting.calls
        with warnings.catch_warnings(), context():
            warnings.simplefilter("error")
            reports = [refchain(probe(), all=every, name="probe()") for every in (False, True)]
        assert calls == Counting.calls
        assert before == (sys.getrefcount(probe()), probe()._use_count())
        assert torch.equal(state, torch.get_rng_state())
        assert random.getstate() == rng
        assert gc.isenabled() == was_on
        gc.disable()
        assert was_on or waiting() is not None
        for report in reports:
            assert report.complete, report.text()
            assert "planted[0]" in {str(chain) for chain in report.chains}
            assert not [c for c in report.chains if "nbinspect" in str(c) or "Backward(" in str(c)]
        del names["planted"], names["loss_planted"]
        assert probe() is None
    finally:
        gc.enable()
    gc.collect()


def test_in_a_thread_while_another_changes_containers(names: dict[str, Any]) -> None:
    names["planted"] = {"k": [torch.ones(10)]}
    end = threading.Event()

    def churn() -> None:
        made: list[Any] = []
        while not end.is_set():
            made.append({len(made): [len(made)]})
            names["planted"][f"n{len(made) % 50}"] = made[-1]
            if len(made) > 500:
                made.clear()

    found: list[Any] = []

    def ask() -> None:
        found.append(refchain(names["planted"]["k"][0], name="probe"))

    threads = [threading.Thread(target=churn), *(threading.Thread(target=ask) for _ in range(3))]
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join(60)
    end.set()
    threads[0].join(60)
    assert len(found) == 3
    assert {"planted['k'][0]"} == {str(report.chains[0]) for report in found}


class Slotted:
    __slots__ = ("left",)

    left: Any


class Plain:
    pass


def generator(value: Any) -> Iterator[int]:
    yield 1
    _ = value


def closure(value: Any) -> Any:
    return lambda: value


SHAPES = st.recursive(
    st.sampled_from(["target", "target", "weak", "nothing"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text("abc'\\ ", max_size=3), inner, min_size=1, max_size=3),
        st.builds(
            lambda kind, a: (kind, a),
            st.sampled_from(["slots", "instance", "closure", "generator", "loss"]).map(
                lambda kind: kind.upper()
            ),
            inner,
        ),
    ),
    max_leaves=8,
)


class Builder:
    """Makes objects as a shape says."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def build(self, shape: Any) -> tuple[Any, bool]:
        """Give the object, and whether it leads to the target."""
        match shape:
            case "target":
                return self.target, True
            case "weak":
                return weakref.ref(self.target), False
            case "nothing":
                return 3.5, False
            case (str() as kind, inner) if kind.isupper():
                return self._special(kind, *self.build(inner))
            case list():
                parts = [self.build(one) for one in shape]
                return [value for value, _ in parts], any(leads for _, leads in parts)
            case tuple():
                (a, one), (b, two) = map(self.build, shape)
                return (a, b), one or two
            case dict():
                built = {key: self.build(one) for key, one in shape.items()}
                leads = any(leads for _, leads in built.values())
                return {key: value for key, (value, _) in built.items()}, leads
        raise AssertionError(shape)

    def _special(self, kind: str, value: Any, leads: bool) -> tuple[Any, bool]:
        match kind:
            case "SLOTS":
                slotted = Slotted()
                slotted.left = value
                return slotted, leads
            case "INSTANCE":
                plain = Plain()
                plain.held = value  # type: ignore[attr-defined]
                return plain, leads
            case "CLOSURE":
                return closure(value), leads
            case "GENERATOR":
                waiting = generator(value)
                next(waiting)
                return waiting, leads
        loss = self.target.exp().mul(self.target).sum()
        loss.extra = value
        return loss, True


def held_by(value: Any) -> list[Any]:
    """What an object refers to, from Python and from C++, found without the package's own walk."""
    found = [*gc.get_referents(value), *getattr(value, "__dict__", {}).values()]
    if isinstance(value, torch.Tensor):
        found += [value.grad_fn, value._base]
    for node, _ in getattr(value, "next_functions", ()):
        found.append(node)
    for name in [one for one in dir(type(value)) if one.startswith("_raw_saved_")]:
        found.append(getattr(value, name).data)
    return found


NAMES = ("planted_one", "planted_two", "planted_three")


@FEW
@given(st.lists(SHAPES, min_size=1, max_size=3))
def test_every_root_is_found_and_code_is_right(names: dict[str, Any], shapes: list[Any]) -> None:
    target: Any = torch.ones(4, requires_grad=True) * 2
    leads: set[str] = set()
    found: dict[int, Any] = {}
    for name, shape in zip(NAMES, shapes, strict=False):
        names[name], does = Builder(target).build(shape)
        leads |= {name} if does else set()
    counts = sys.getrefcount(target), target._use_count()
    report = refchain(target, all=True, name="it")
    assert counts == (sys.getrefcount(target), target._use_count())
    roots = {chain.root for chain in report.chains}
    for name in set(NAMES) & set(names):
        assert (name in roots) == (name in leads), (name, report.text())
    alive = {id(one): one for one in gc.get_objects()}
    for chain in report.chains:
        if chain.root in NAMES:
            assert chain.steps[0][0] == id(names)
            assert chain.steps[-1] == (id(target), "Tensor")
        for (holder, _), (held, type_name) in pairwise(chain.steps):
            found = {id(one): one for one in held_by(alive[holder])}
            assert held in found, (chain.steps, str(chain), type(alive[holder]))
            assert type(found[held]).__name__ == type_name, (chain.steps, report.text())
            assert not isinstance(alive[holder], weakref.ref)
            alive.setdefault(held, found[held])  # a node that nothing in Python refers to
        assert {link.key for link in chain.links if link.key} <= {key for key, _ in chain.steps}
    alive.clear()
    del found
    for chain in report.chains:
        first = chain.links[0].label
        if chain.root in NAMES and len(chain.links) == 1 and "," not in first:
            assert eval(first, names) is target
        elif chain.root in NAMES and first.isprintable() and "," not in first:
            eval(first, names)  # what is named is there
    for name in set(NAMES) & set(names):
        del names[name]
