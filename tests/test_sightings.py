"""In which cell an object came into sight: never a wrong one, whatever was added, taken away, reused."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbinspect import sightings
from nbinspect.sightings import Sightings


class Thing:
    """Something of the user's, made in a cell."""

    def __init__(self, cell: int) -> None:
        self.cell = cell
        self.inside: list[Any] = []


def looked_at(names: dict[str, Any]) -> Sightings:
    found = Sightings()
    found.look(names, None)
    return found


def test_what_was_there_before_is_of_no_cell() -> None:
    names = {"a": [Thing(0)]}
    found = looked_at(names)
    assert found.cell_of(names["a"][0]) is None
    found.look(names, 1)
    assert found.cell_of(names["a"][0]) is None


def test_what_comes_into_sight_between_cells_is_of_none() -> None:
    names: dict[str, Any] = {"a": []}
    found = looked_at(names)
    names["a"].append(Thing(0))
    found.look(names, None)
    found.look(names, 1)
    assert found.cell_of(names["a"][0]) is None


def test_an_address_that_is_used_again_is_another_object() -> None:
    names: dict[str, Any] = {"a": []}
    found, addresses = looked_at(names), set()
    for cell in range(1, 50):
        names["a"].clear()
        names["a"].append(Thing(cell))
        addresses.add(id(names["a"][0]))
        found.look(names, cell)
        assert found.cell_of(names["a"][0]) == cell
    assert len(addresses) < 49


def test_nothing_is_kept_alive() -> None:
    names = {"a": [Thing(0)], "f": lambda x=Thing(0): x}  # noqa: B008 - to be held
    refs = weakref.ref(names["a"][0]), weakref.ref(names["f"].__defaults__[0])
    found = looked_at(names)
    found.look(names, 1)
    names.clear()
    assert [ref() for ref in refs] == [None, None]


def test_a_long_list_is_left_alone_and_not_guessed_at_when_it_is_cut() -> None:
    names: dict[str, Any] = {"a": [Thing(0) for _ in range(sightings.MOST_ITEMS + 1)]}
    found = looked_at(names)
    found.look(names, 1)
    del names["a"][100:]
    found.look(names, 2)
    assert found.cell_of(names["a"][0]) is None
    names["a"].append(Thing(3))
    found.look(names, 3)
    assert found.cell_of(names["a"][-1]) == 3
    assert found.cell_of(names["a"][0]) is None


@pytest.mark.parametrize("most", [1, 5, 40])
@given(steps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_no_cell_is_ever_wrong(most: int, steps: list[tuple[int, int]]) -> None:
    """Things are made in the cell that adds them, so any other cell is wrong, whatever is cut off."""
    names: dict[str, Any] = {"a": Thing(0), "b": {}, "c": [[]], "d": ()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sightings, "MOST_LOOKS", 4 * most)
        patch.setattr(sightings, "MOST_ITEMS", most)
        found = looked_at(names)
        made = [names["a"]]
        for cell, (what, where) in enumerate(steps, start=1):
            new = Thing(cell)
            if what < 3:
                made[where % len(made)].inside.append(new)
            elif what < 5:
                names["b"][where] = new
            elif what < 7:
                names["c"][0].append([new])
            elif what == 7:
                names["d"] = (*names["d"], {where: new})
            else:
                (names["c"][0] if what == 8 else names["b"]).clear()
                made[where % len(made)].inside.clear()
            made.append(new)
            found.look(names, cell)
            assert all(found.cell_of(one) in {one.cell, None} for one in made)
            if most == 40 and len(made) < 5 and what < 8:
                assert found.cell_of(new) == cell or what < 3
