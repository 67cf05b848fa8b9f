"""Objects counted by type: objgraph's numbers, what grew, and nothing run or collected."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import objgraph

from nbinspect import TypeCounts, count_types


class Batch:
    pass


BATCH = f"{Batch.__module__}.Batch"


def row(counts: TypeCounts, name: str) -> tuple[int, int, int]:
    return next((c.n_objects, c.n_most, c.n_more) for c in counts.types if c.type_name == name)


def test_the_numbers_are_objgraphs() -> None:
    kept = [Batch() for _ in range(30)]
    counts = count_types()
    theirs = objgraph.typestats(shortnames=False)
    assert row(counts, BATCH)[0] == theirs[BATCH] == len(kept)
    assert not any(one.type_name.startswith("nbinspect.") for one in counts.types)
    numbers = [one.n_objects for one in counts.types]
    assert numbers == sorted(numbers, reverse=True)
    assert sum(one.n_more for one in counts.types) == 0


def test_what_comes_and_goes_is_no_growth() -> None:
    kept = [Batch() for _ in range(5)]
    first = count_types()
    kept += [Batch() for _ in range(20)]
    second = count_types(first)
    assert row(second, BATCH) == (25, 25, 20)
    del kept[3:]
    third = count_types(second)
    assert row(third, BATCH) == (3, 25, 0)
    kept.clear()
    fourth = count_types(third)
    assert row(fourth, BATCH) == (0, 25, 0)
    kept += [Batch() for _ in range(25)]
    fifth = count_types(fourth)
    assert row(fifth, BATCH) == (25, 25, 0)
    kept.append(Batch())
    assert row(count_types(fifth), BATCH) == (26, 26, 1)


def test_the_sentence_and_the_table() -> None:
    counts = count_types()
    assert "objects of" in counts.text()
    assert "types are alive." in counts.text()
    kept = [Batch() for _ in range(9_000)]
    shown = " ".join(count_types(counts, n_rows=1).text().split())
    assert f"of type {BATCH}." in shown
    assert f"{BATCH} 9 000 9 000" in shown
    assert len(kept) == 9_000


def test_saved_and_read_back() -> None:
    counts = count_types(count_types())
    again = TypeCounts.from_dict(counts.to_dict())
    assert again == counts
    assert again.text() == counts.text()


def test_nothing_is_collected_kept_or_run() -> None:
    ran = []

    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            if name in {"__name__", "__module__"}:
                ran.append(name)
            return super().__getattribute__(name)

        def __eq__(cls, other: object) -> bool:
            ran.append("__eq__")
            return NotImplemented

        __hash__ = type.__hash__

    class Odd(metaclass=Meta):
        pass

    class Ring:
        def __init__(self) -> None:
            self.me = self

    gc.collect()
    gc.disable()
    odd, probe = Odd(), weakref.ref(Ring())
    ran.clear()
    try:
        counts = count_types()
        assert not gc.isenabled()
        assert probe() is not None
    finally:
        gc.enable()
    assert ran == []
    assert any("Ring" in one.type_name for one in counts.types)
    alive = weakref.ref(odd)
    del odd
    assert alive() is None
