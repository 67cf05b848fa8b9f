"""What the census promises whatever there is in memory."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nbinspect
from nbinspect.holders import Census, census
from nbinspect.tensors import addresses

FEW = settings(max_examples=12)


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """The global names of the running program; what a test adds is taken away again."""
    names = vars(sys.modules["__main__"])
    before = set(names)
    yield names
    for name in set(names) - before:
        del names[name]


def total(seen: Census) -> int:
    return sum(one.size_bytes for one in seen.storages)


def owners(seen: Census) -> dict[str, int]:
    """The bytes of each VARIABLE, by name."""
    return {
        one.claims[0].owner: one.size_bytes
        for one in seen.storages
        if one.claims[0].kind == "VARIABLE"
    }


LEAVES = st.integers(1, 50)
KEYS = st.one_of(
    st.text(max_size=5), st.integers(), st.booleans(), st.none(), st.binary(max_size=3)
)
SHAPES = st.recursive(
    st.one_of(LEAVES, st.tuples(st.just("view"), LEAVES), st.just("text")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3),
        st.builds(lambda a, b: ("object", a, b), inner, inner),
        st.builds(lambda a: ("deque", a), st.lists(inner, max_size=2)),
    ),
    max_leaves=12,
)


class Slotted:
    __slots__ = ("left", "right")


def build(shape: Any, made: list[torch.Tensor]) -> Any:
    """Make objects as `shape` says, with a tensor for each number, and note every tensor."""
    match shape:
        case bool() | str() | None:
            return shape
        case int():
            made.append(torch.ones(shape))
            return made[-1]
        case ("view", n):
            made.append(torch.ones(n + 5))
            return [made[-1][:n], made[-1].view(-1).detach()]
        case ("object", left, right):
            slotted = Slotted()
            slotted.left = build(left, made)
            slotted.right = SimpleNamespace(value=build(right, made))
            return slotted
        case ("deque", parts):
            return deque(build(one, made) for one in parts)
        case list():
            return [build(one, made) for one in shape]
        case dict():
            return {key: build(one, made) for key, one in shape.items()}
    raise AssertionError(shape)


@FEW
@given(SHAPES)
def test_bytes_add_up_and_names_are_code(names: dict[str, Any], shape: Any) -> None:
    names.pop("planted", None)
    before = census()
    made: list[torch.Tensor] = []
    names["planted"] = build(shape, made)
    sizes = {one.data_ptr(): one.untyped_storage().nbytes() for one in made}
    counts = [(one._use_count(), sys.getrefcount(one)) for one in made]
    seen = census()
    assert [(one._use_count(), sys.getrefcount(one)) for one in made] == counts
    assert total(seen) - total(before) == sum(sizes.values())
    assert seen.complete == before.complete
    found = {owner: size for owner, size in owners(seen).items() if owner.startswith("planted")}
    addresses = set()
    for owner, size in found.items():
        tensor = eval(owner, names)
        assert sizes[tensor.data_ptr()] == size
        addresses.add(tensor.data_ptr())
    assert addresses == set(sizes)
    made.clear()  # nothing of one run stays for the next


def test_two_in_a_row_are_equal_and_a_diff_says_what_came(names: dict[str, Any]) -> None:
    names["planted"] = model = torch.nn.Linear(30, 30)
    names["other_planted"] = optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 30)).sum().backward()
    optimizer.step()
    names["losses_planted"] = [model(torch.ones(2, 30)).square().sum() for _ in range(3)]
    first, second = nbinspect.gpumem(), nbinspect.gpumem()
    for one, two in zip(first.devices, second.devices, strict=True):
        # What test files keep has names in pytest's books as well, which change meanwhile.
        ours, theirs = (
            [held for held in some.holdings if not held.owner.startswith("tests.")]
            for some in (one, two)
        )
        assert ours == theirs
        assert one.by_kind == two.by_kind
        assert one.tracked_bytes == sum(held.size_bytes for held in one.holdings)
        assert one.tracked_bytes == sum(size for _, size in one.by_kind)
    assert first.waste == second.waste
    assert not first.diff(first)
    assert not first.diff(second)
    names["more_planted"] = torch.ones(1000)
    names["view_planted"] = names["more_planted"][:10]
    third = nbinspect.gpumem()
    (change,) = first.diff(third).changes
    assert (change.kind, change.owner) == ("VARIABLE", "more_planted")
    assert (change.before_bytes, change.after_bytes) == (0, 4000)
    (back,) = third.diff(first).changes
    assert (back.before_bytes, back.after_bytes) == (4000, 0)


def test_beyond_the_cap_it_says_so_and_stays_the_same(names: dict[str, Any]) -> None:
    x = torch.ones(10, requires_grad=True)
    names["planted"] = x
    for _ in range(300):
        names["planted"] = names["planted"].exp()
    first, second = census(cap=100), census(cap=100)
    assert not first.complete
    assert any("larger than can be walked" in note for note in first.notes)
    assert first == second
    assert census().complete
    assert total(first) < total(census())


@pytest.mark.parametrize("was_on", [True, False])
def test_it_keeps_nothing_alive_and_collects_nothing(names: dict[str, Any], was_on: bool) -> None:
    names["planted"] = [
        torch.ones(10),
        torch.nn.Linear(2, 2),
        torch.ones(3, requires_grad=True) * 2,
    ]
    references = [weakref.ref(one) for one in names["planted"]]
    garbage: list[Any] = [torch.ones(20)]
    garbage.append(garbage)
    waiting = weakref.ref(garbage[0])
    gc.disable()
    try:
        del garbage
        if was_on:
            gc.enable()
        seen = nbinspect.gpumem()
        assert gc.isenabled() == was_on
        gc.disable()
        assert was_on or waiting() is not None
        del names["planted"]
        assert [one() for one in references] == [None, None, None]
        owners_then = [one.owner for one in seen.device("cpu").holdings]
        assert was_on or "list[0]" in owners_then
    finally:
        gc.enable()
    gc.collect()


def test_nothing_of_its_own_is_in_the_answer(names: dict[str, Any]) -> None:
    names["planted"] = torch.ones(10)
    for _ in range(2):
        claims = [claim for one in census().storages for claim in one.claims]
        assert not [one for one in claims if "nbinspect" in one.owner or "HeapGraph" in one.owner]
        (planted,) = [one for one in claims if one.owner == "planted"]
        assert planted.kind == "VARIABLE"


def test_it_counts_each_storage_of_tied_and_sliced_weights_once(names: dict[str, Any]) -> None:
    before = total(census())
    names["planted"] = embed = torch.nn.Embedding(100, 10)
    names["head"] = head = torch.nn.Linear(10, 100, bias=False)
    head.weight = embed.weight
    names["row"], names["data"] = embed.weight[0], embed.weight.data
    assert total(census()) - before == 4000


def test_meeting_all_tensors_leaves_them_as_they_were(names: dict[str, Any]) -> None:
    names["planted"] = torch.ones(10)
    met: list[weakref.ref[torch.Tensor]] = []
    census(meet=lambda tensors: met.extend(map(weakref.ref, tensors)))
    assert names["planted"] in [one() for one in met if one() is not None and one().shape == (10,)]


def test_addresses_are_ids() -> None:
    values = [object(), None, [], int, 3.5, "text", torch.ones(1)]
    assert addresses(iter(values), len(values)).tolist() == list(map(id, values))
    assert addresses([], 0).tolist() == []
