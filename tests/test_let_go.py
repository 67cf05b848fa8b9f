"""What watched a call or a cell is gone when it ends, without waiting for Python's collector."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import nbinspect
from nbinspect.ops import OpStream
from nbinspect.wrapping import wrap


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Step:
    """What a user would have watched: it holds a tensor and is weakly referable."""

    def __init__(self) -> None:
        self.weight = torch.ones(3, requires_grad=True)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        loss = (self.weight * x).exp().sum()
        loss.backward()
        return loss


def memwatch(step: Step) -> None:
    with nbinspect.memwatch():
        step(torch.ones(3))


def graphwatch(step: Step) -> None:
    with nbinspect.graphwatch():
        step(torch.ones(3))


def nanwatch(step: Step) -> None:
    with nbinspect.nanwatch():
        step(torch.ones(3))


def gradwatch(step: Step) -> None:
    with nbinspect.gradwatch():
        step(torch.ones(3))


def headroom(step: Step) -> None:
    nbinspect.headroom(step, torch.ones(3))


def leakwatch(step: Step) -> None:
    nbinspect.leakwatch(lambda: step(torch.ones(3)), n=2)


WATCHES = (memwatch, graphwatch, nanwatch, gradwatch, headroom, leakwatch)


@pytest.mark.parametrize("watch", WATCHES, ids=[one.__name__ for one in WATCHES])
def test_what_was_watched_is_let_go_at_once(watch: Callable[[Step], None]) -> None:
    step = Step()
    left = weakref.ref(step)
    watch(step)
    del step
    assert left() is None


def test_a_stream_lets_go_of_who_listened() -> None:
    class Listener:
        def __call__(self, *_: Any) -> None:
            pass

    listener = Listener()
    left = weakref.ref(listener)
    stream = OpStream(listener)
    with stream:
        torch.ones(3).sum()
    del listener, stream
    assert left() is None


def test_a_function_that_was_imported_while_it_was_wrapped_is_the_plain_one_again() -> None:
    class Around:
        def __call__(self, original: Any, args: Any, kwargs: Any) -> Any:
            return original(*args, **kwargs) + 1

    module = SimpleNamespace(double=lambda x: 2 * x)
    original, around = module.double, Around()
    left = weakref.ref(around)
    with ExitStack() as undo:
        wrap(undo, module, "double", around)
        kept = module.double
        assert kept(3) == 7
    del around
    assert module.double is original
    assert kept(3) == 6
    assert left() is None


def test_a_wrapper_of_somebody_elses_stays_where_it_is():
    class Owner:
        def method(self):
            return "original"

    ours, later = ExitStack(), ExitStack()
    wrap(ours, Owner, "method", lambda original, args, kwargs: original(*args, **kwargs) + " ours")

    below = Owner.method

    @functools.wraps(below)
    def foreign(self):
        return below(self) + " foreign"

    Owner.method = foreign
    wrap(
        later, Owner, "method", lambda original, args, kwargs: original(*args, **kwargs) + " later"
    )
    assert Owner().method() == "original ours foreign later"
    ours.close()
    assert Owner().method() == "original foreign later"
    later.close()
    assert Owner.method is foreign
    assert Owner().method() == "original foreign"
