"""What lies below the user's names is measured once, by its owner, and without the user's code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nbinspect.leaks.bulk import bulk_bytes, is_small_view
from nbinspect.leaks.places import LEAST_BYTES, MOST_OBJECTS, Places, tree


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a function that binds a name as the user would."""
    return lambda name, value: monkeypatch.setitem(vars(sys.modules["__main__"]), name, value)


def sizes() -> dict[str, int]:
    found = tree()
    numbers = [number for number, size in enumerate(found.sizes) if size >= LEAST_BYTES]
    return {found.name(number): found.sizes[number] for number in numbers}


def test_the_bytes_are_those_of_what_owns_them(tmp_path: Path) -> None:
    whole, raw = np.zeros((100, 100)), b"x" * 9000
    row = whole[3:4][0]
    assert bulk_bytes(row) == bulk_bytes(whole) == (id(whole), 80_000)
    assert is_small_view(row)
    assert not is_small_view(whole.T)
    assert bulk_bytes(np.frombuffer(raw, np.uint8)[:5]) == (id(raw), sys.getsizeof(raw))
    assert bulk_bytes(np.asarray(memoryview(raw))) == (id(raw), sys.getsizeof(raw))
    assert bulk_bytes(torch.zeros(1000).numpy()[2:])[1] == 0  # the tensor's
    file = np.memmap(tmp_path / "file", np.uint8, "w+", shape=10_000)
    assert bulk_bytes(file[5:])[1] == 0  # the file's


def test_each_byte_counts_once_under_its_nearest_name(names) -> None:
    array = np.zeros(10_000)
    names("deep_of_tests", {"a": [array], "b": array[5:], "c": {"d": np.zeros(1000)}})
    names("near_of_tests", array)
    told = {name: size for name, size in sizes().items() if "_of_tests" in name}
    small = "deep_of_tests['c']"
    assert told == {
        "near_of_tests": 80_000,
        "deep_of_tests": 8000,
        small: 8000,
        f"{small}['d']": 8000,
    }


@pytest.mark.parametrize("name", ["__compiled_fn_3_0f2c", "plain_fn"])
def test_what_torch_compile_put_among_the_names_is_not_the_users(name: str) -> None:
    vars(sys.modules["__main__"])[name] = {"log of_tests": np.zeros(10_000)}
    told = [one for one in sizes() if "of_tests" in one]
    del vars(sys.modules["__main__"])[name]
    assert told == (["plain_fn['log of_tests']"] if name == "plain_fn" else [])


def test_names_that_are_no_text_are_borne() -> None:
    vars(sys.modules["__main__"])[5] = np.zeros(10_000)
    try:
        assert 80_000 in sizes().values()
    finally:
        del vars(sys.modules["__main__"])[5]


def odd_values(own: dict[str, Any]) -> tuple[Any, ...]:
    """Make one object of each kind, with methods of its own; in all 10,000 numbers, 9,000 bytes."""
    kinds = [type("Odd", (base,), own) for base in (object, list, dict, set, bytearray, np.ndarray)]
    plain, odd_list, odd_dict, odd_set, odd_bytes, odd_array = kinds
    one: Any = object.__new__(plain)
    object.__setattr__(one, "kept", np.zeros(1000))
    mapped, listed = odd_dict(), odd_list()
    dict.__setitem__(mapped, "x", np.zeros(2000))
    list.append(listed, np.zeros(3000))
    array = np.ndarray.__new__(odd_array, 4000)
    return one, mapped, listed, odd_set(), odd_bytes(9000), array


def test_looking_runs_no_code_of_the_users(names) -> None:
    ran = list[str]()

    def note(*_: object) -> Any:
        ran.append("run")
        raise RuntimeError("not to be run")

    special = ("getattr", "getattribute", "len", "iter", "eq", "hash", "sizeof", "repr", "getitem")
    own = {f"__{name}__": note for name in special}
    names("odd_of_tests", odd_values(own | dict.fromkeys(("nbytes", "dtype"), property(note))))
    whole = sizes()["odd_of_tests"]
    assert 89_000 <= whole < 89_200
    assert ran == []


def test_what_is_noted_holds_nothing_and_says_what_rises_every_time(names) -> None:
    kept: dict[int, Any] = {}
    names("kept_of_tests", kept)
    names("last_of_tests", None)
    places = Places()
    for number in range(4):
        places.note()
        kept[number] = np.zeros(1000)
        names("last_of_tests", np.zeros(1000 * (number % 2 + 1)))
        reference = sys.getrefcount(kept[number])
    places.note()
    held = sys.getrefcount(kept[3])
    assert held == reference
    namespace = id(vars(sys.modules["__main__"]))
    told = {place[1]: more for place, more in places.per_run(4).items() if place[0] == namespace}
    assert told == {"kept_of_tests": (8000, 1)}


def test_a_large_heap_is_looked_at_in_part(names) -> None:
    names("many_of_tests", [[] for _ in range(2 * MOST_OBJECTS)])
    assert MOST_OBJECTS <= len(tree().values) <= 4 * MOST_OBJECTS


def test_it_is_known_that_more_lies_below_the_names_than_is_looked_at(names) -> None:
    names("few_of_tests", [])
    names("many_of_tests", [[one] for one in range(MOST_OBJECTS)])
    assert not tree().is_whole
    places = Places()
    places.note()
    assert not places.saw_all
