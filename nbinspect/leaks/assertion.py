"""Growth as an error: what a test asserts once a leak is found."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from nbinspect import notebook
from nbinspect.holders import Census
from nbinspect.leaks.growth import Survivor, by_holder, growth_of, size_of, survivors
from nbinspect.leaks.owners import item_of, plain
from nbinspect.leaks.records import Growth
from nbinspect.leaks.rounds import Rounds
from nbinspect.render.format import bytes_text

SHOWN = 5
LATE = 0.5  # of the block; what is replaced each time was made in its last part
VARIABLE = re.compile(r"^(?:frame .*?, variable )?([^\W\d]\w*)")


@contextmanager
def assert_no_growth(tolerance_bytes: int = 0) -> Iterator[None]:
    """Assert that a block leaves no tensor behind, so that a leak once found stays mended.

    Repeat the step inside, after one step outside that fills caches and makes what an optimizer
    makes at its first step::

        step()
        with nbinspect.assert_no_growth():
            for _ in range(5):
                step()

    A variable that the block binds anew is no growth, unless its graph gets longer all along.

    Args:
        tolerance_bytes: how much may stay.

    Raises:
        AssertionError: more stayed; it names the holders, the lines and the mends. An error of the
            block goes on as it is.

    Cost: some 20 µs an operation, and a census before and after. Collects nothing, so cycles that
    wait for the collector count.
    Blind to: memory that is no tensor's; a running total such as ``total += loss`` whose graph gets
    longer, which only repetitions show (see `leakwatch`).
    Source: a dispatch mode and weak references to storages.
    """
    rounds = Rounds()
    bound = _bindings(notebook.user_frame(sys._getframe()))
    before = rounds.census()
    try:
        with rounds:
            yield
        rounds.mark()
        now = _bindings(notebook.user_frame(sys._getframe()))
        anew = {name for name, value in now.items() if bound.get(name) != value}
        found = _left_behind(rounds, before, anew)
    finally:
        rounds.close()
    size = sum(one.bytes_per_run for one in found)
    if size > tolerance_bytes:
        raise AssertionError(_message(found, size))


def _bindings(frame: FrameType | None) -> dict[str, int]:
    """Say which object each variable of a call and of the notebook is, by its id."""
    names = {name: id(value) for name, value in list(notebook.user_namespace().items())}
    if frame is not None:
        names |= {name: id(value) for name, value in notebook.frame_locals(frame).items()}
        names |= {name: id(value) for name, value in list(frame.f_globals.items())}
    return names


def _left_behind(rounds: Rounds, before: Census, anew: set[str]) -> list[Growth]:
    """Tell what stayed, less what was there before under the same holder."""
    after = rounds.census()
    found = []
    for group in by_holder(survivors(rounds.survivors(), after)):
        if _is_replaced(group.members, rounds, anew):
            continue
        growth = growth_of(group, 0, 0)
        was = _held_by(growth.holder, before)
        added = _held_by(growth.holder, after) - was if was else size_of(group.members)
        if added > 0:
            found.append(replace(growth, bytes_per_run=added))
    return sorted(found, key=lambda one: -one.bytes_per_run)


def _is_replaced(group: list[Survivor], rounds: Rounds, anew: set[str]) -> bool:
    """Say whether a variable keeps a group that the block has bound anew, and late."""
    name = VARIABLE.search(group[0].claim.owner)
    if group[0].state != "live" or name is None or name[1] not in anew:
        return False
    is_graph = any(one.claim.kind == "SAVED_FOR_BACKWARD" for one in group)
    return not is_graph or all(rounds.fraction(one.ref) > LATE for one in group)


def _held_by(holder: str, seen: Census) -> int:
    return sum(
        one.size_bytes
        for one in seen.storages
        if (owner := plain(one.claims[0].owner)) == holder or item_of(owner, holder)
    )


def _message(found: list[Growth], size: int) -> str:
    lines = [f"{bytes_text(size)} of tensors stayed behind:"]
    for one in found[:SHOWN]:
        where = f", made at {one.where.label}" if one.where else ""
        lines += [
            f"  {bytes_text(one.bytes_per_run)} kept by {one.holder}{where}",
            f"    {one.mend}",
        ]
    if len(found) > SHOWN:
        lines.append(f"  and {len(found) - SHOWN} more")
    return "\n".join(lines)
