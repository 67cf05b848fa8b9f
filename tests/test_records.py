"""Records hold plain values only, and go through strict JSON and back."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import pkgutil
import sys
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbinspect
from nbinspect import blocks
from nbinspect.blocks import Text, Unavailable, View
from nbinspect.records import Holding, Reading, Record, SourceLine, from_plain, to_plain

PLAIN = (str, int, float, bool, bytes, type(None))


def import_all() -> None:
    for module in pkgutil.walk_packages(nbinspect.__path__, "nbinspect."):
        importlib.import_module(module.name)


def subclasses(cls: type) -> set[type]:
    found = {sub for sub in cls.__subclasses__() if sub.__module__.startswith("nbinspect.")}
    # `slots=True` makes a class anew; the first one lives on until it is collected.
    found = {sub for sub in found if getattr(sys.modules[sub.__module__], sub.__name__) is sub}
    return found.union(*map(subclasses, found))


def not_plain(hint: Any) -> list[str]:
    """What in a type is no plain value, with the way to it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in PLAIN or origin is Literal:
        return []
    if origin in (typing.Union, types.UnionType):
        return [problem for arg in args for problem in not_plain(arg)]
    if origin is tuple:
        return [problem for arg in args if arg is not ... for problem in not_plain(arg)]
    if dataclasses.is_dataclass(hint):
        frozen = hint.__dataclass_params__.frozen and "__slots__" in vars(hint)
        problems = [] if frozen else [f"{hint.__name__} is not frozen and slotted"]
        hints = typing.get_type_hints(hint)
        for field in dataclasses.fields(hint):
            problems += [f"{hint.__name__}.{field.name}: {p}" for p in not_plain(hints[field.name])]
        return problems
    return [str(hint)]


def record_types() -> list[type]:
    import_all()
    return sorted(subclasses(Record), key=lambda cls: cls.__name__)


def test_every_record_holds_plain_values_only():
    found = record_types()
    assert {"MemorySnapshot", "MemoryReport"} <= {cls.__name__ for cls in found}
    assert [problem for cls in found for problem in not_plain(cls)] == []


@dataclass(frozen=True, slots=True)
class Bad:
    things: tuple[list[int], ...]


def test_the_check_finds_what_is_not_plain():
    assert not_plain(Bad) == ["Bad.things: list[int]"]


@dataclass(frozen=True, slots=True)
class Inner:
    reading: Reading
    share: float
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, slots=True)
class Sample(Record):
    name: str
    inner: Inner | None
    pair: tuple[float, int]
    many: tuple[tuple[str, Reading], ...]
    cell: str | int | float | Unavailable | None
    flag: bool = False

    def view(self) -> View:
        return (Text((self.name,), "headline"),)


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
READINGS = st.integers() | st.builds(Unavailable, ANY_TEXT)
FLOATS = st.floats()
SAMPLES = st.builds(
    Sample,
    ANY_TEXT,
    st.none() | st.builds(Inner, READINGS, FLOATS, st.sampled_from(["a", "b"])),
    st.tuples(FLOATS, st.integers()),
    st.lists(st.tuples(ANY_TEXT, READINGS), max_size=3).map(tuple),
    ANY_TEXT | st.integers() | FLOATS | st.builds(Unavailable, ANY_TEXT) | st.none(),
    st.booleans(),
)


def through_json(plain: Any) -> Any:
    return json.loads(json.dumps(plain, allow_nan=False))


@given(SAMPLES)
def test_any_record_goes_through_strict_json_and_back(sample):
    back = Sample.from_dict(through_json(sample.to_dict()))
    assert repr(back) == repr(sample)  # repr, since NaN is not itself


@pytest.mark.parametrize("cls", record_types(), ids=lambda cls: cls.__name__)
def test_every_record_of_the_package_goes_through_json_and_back(cls):
    @given(st.from_type(cls))
    @settings(max_examples=20)
    def check(record: Any) -> None:
        assert repr(cls.from_dict(through_json(record.to_dict()))) == repr(record)

    check()


def test_views_go_through_json_too():
    for view in (
        blocks.Text(("a", blocks.Code("b"), blocks.Size(1)), "note"),
        blocks.Advice(("a",), "b", None),
        blocks.Bar("a", (blocks.Segment("b", 1, "FREE"),), 2),
        blocks.Fold("a", (blocks.Timeline("t", (0.0,), (1,), (blocks.Mark(0.0, 1, "m"),)),)),
    ):
        hint = typing.get_type_hints(blocks.Fold)["blocks"]
        assert from_plain(through_json(to_plain((view,))), hint) == (view,)


def test_numbers_that_json_lacks():
    values = (math.inf, -math.inf, math.nan)
    plain = through_json(to_plain(values))
    assert plain == [{"float": "inf"}, {"float": "-inf"}, {"float": "nan"}]
    assert repr(from_plain(plain, tuple[float, ...])) == repr(values)


GOOD = Sample("n", Inner(3, 0.5), (1.0, 2), (("x", 1),), None).to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 1}, "name: 1 is no str"),
        ({"flag": 1}, "flag: 1 is no bool"),
        ({"inner": {"reading": "x", "share": 1}}, "inner.reading: 'x' is no int"),
        ({"inner": {"reading": 1, "share": 1, "kind": "c"}}, "inner.kind: 'c' is no .*Literal"),
        ({"inner": {"reading": 1}}, "inner: Inner needs 'share'"),
        ({"pair": [1.0]}, "pair: 1 items instead of 2"),
        ({"pair": [True, 1]}, r"pair\[0\]: True is no float"),
        ({"many": [["x", 1], ["y", {"reason": 2}]]}, r"many\[1\]\[1\].reason: 2 is no str"),
        ({"other": 1}, "value: Sample has no 'other'"),
        ({"many": "x" * 99}, "many: 'x{58}… is no tuple"),
    ],
)
def test_a_plain_value_that_does_not_fit_is_named(change, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        Sample.from_dict({**GOOD, **change})


def test_what_is_missing_takes_its_default():
    assert Sample.from_dict({k: v for k, v in GOOD.items() if k != "flag"}).flag is False
    assert from_plain({"reading": 1, "share": 2}, Inner) == Inner(1, 2.0)


def test_a_record_with_something_else_in_it_says_so():
    with pytest.raises(TypeError, match="a record holds plain values only, not list"):
        Sample("n", None, (1.0, 2), [], None).to_dict()


def test_a_record_shows_itself():
    sample = Sample("hello", None, (1.0, 2), (), None)
    assert str(sample) == sample.text() == "hello"
    assert sample._repr_mimebundle_() == {"text/plain": "hello", "text/html": sample.html()}
    assert "hello" in sample.svg()
    assert sample.png().startswith(b"\x89PNG")


def test_a_source_line_has_one_spelling():
    assert SourceLine(7, "", 3, "x = 1").label == "In[7] line 3"
    assert SourceLine(None, "train.py", 12, "x = 1").label == "train.py:12"
    assert Holding("OTHER", "x", 1, 1).also == ()
