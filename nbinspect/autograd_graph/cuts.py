"""Where the way from a parameter to a tensor was cut, by what a watched forward has shown."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from nbinspect import notebook
from nbinspect.autograd_graph.code_flow import flows
from nbinspect.autograd_graph.leaving import LEAVING, NUMPY, TOLIST
from nbinspect.autograd_graph.mends import (
    enclosing_no_grad,
    is_constant,
    is_written,
    kept_in_torch,
    sets_an_item,
    sets_to_itself,
    takes_a_number,
    unwrapped,
    without,
)
from nbinspect.autograd_graph.watched import Event, Watched, event_of
from nbinspect.records import SourceLine
from nbinspect.tensors import storage_key

COPYING = {
    "aten::detach",
    "aten::clone",
    "aten::_to_copy",
    "aten::copy_",
    "aten::alias",
    "aten::lift_fresh",
    "aten::view",
    "aten::empty_like",
    "aten::empty",
    "aten::empty_strided",
    "aten::new_empty",
    TOLIST,
    NUMPY,
}
INDEXING = frozenset(
    f"aten::{name}"
    for name in [
        "topk",
        "sort",
        "max",
        "min",
        "median",
        "nanmedian",
        "mode",
        "kthvalue",
        "cummax",
        "cummin",
    ]
)
"""Operations that give values, and indices which have no gradient."""
GUESSED = "if they are the same, the path is cut there"


MOST_PAIRS = 64  # of numbers that left and numbers that came, the nearest first


class Cut(NamedTuple):
    """Why a gradient does not come through.

    Attributes:
        why: the reason, a clause without a full stop.
        mend: the line that mends it, "" if there is none.
        line: where it happened.
        is_cut: False where there never was a way.
        copy_of: the tensor that a leaf was copied from.
    """

    why: str
    mend: str = ""
    line: SourceLine | None = None
    is_cut: bool = True
    copy_of: Any = None


class Cuts:
    """What keeps the gradient of one tensor from parameters.

    Args:
        seen: a watched forward.
        tensor: what it made.
    """

    def __init__(self, seen: Watched, tensor: Any) -> None:
        self._seen = seen
        end = seen.maker(tensor)
        self._within = self._apart = set[int]()
        if end is not None:
            self._within = seen.behind(event_of(end))
            self._apart = seen.behind(event_of(end), seen.settings(seen.leaf_storages()))
        self._users: dict[int, list[int]] = defaultdict(list)
        for number, event in seen.events.items():
            for external in event.externals:
                self._users[external].append(number)

    def find(self, parameter: Any) -> Cut | None:
        """Find the operation where the way from a parameter ends.

        Returns:
            The cut; None if the watched forward did not use the parameter.

        Cost: linear in the number of operations behind the tensor.
        """
        seen, external = self._seen, self._seen.external(parameter)
        setting = seen.settings({storage_key(parameter)})
        users = self._users[external] if external is not None else []
        users = [number for number in users if number not in setting]
        if not users or not self._within:
            return None
        for within in (self._apart, self._within):
            starts = [number for number in users if number in within]
            if not starts:
                continue
            flow = seen.carried_from(starts, within - setting)
            if flow.stopped:
                # What makes integers on the way, as to look something up, is rarely the reason.
                mendable = (n for n in flow.stopped if not seen.events[n].is_number)
                return _stopped(seen, next(mendable, flow.stopped[0]), within)
            return Cut("the operations on its way give no gradient for it", is_cut=False)
        came_back = self._came_back(seen.made_from(users))
        if came_back is not None:
            return came_back
        line = seen.line(seen.events[users[-1]])
        at = f" in {line.label}" if line else ""
        return Cut(f"used{at}, but nothing that came of it goes in", "", line, is_cut=False)

    def _came_back(self, made: set[int]) -> Cut | None:
        """Find numbers that left torch and may have come back, by the code that ran."""
        seen = self._seen
        left = {seen.events[n].place: n for n in sorted(made) if seen.events[n].op in LEAVING}
        first = min(left.values(), default=0)
        later = [n for n in sorted(self._within) if left and n > first]
        back = {seen.events[n].place: n for n in later if _comes_in(seen, n)}
        pairs = [(there, here) for here in back.values() for there in left.values() if there < here]
        pairs.sort(key=lambda pair: pair[1] - pair[0])
        for there, here in pairs[:MOST_PAIRS]:
            if _flows(seen, there, here):
                return _left(seen, there, here)
        return _guessed(seen, *pairs[0]) if pairs else None


def _comes_in(seen: Watched, number: int) -> bool:
    """Say whether an operation took numbers from outside of torch that may be computed ones."""
    event = seen.events[number]
    if event.number is not None:
        return not is_written(seen.expression(event), event.number)
    is_new = event.op == "aten::lift_fresh" and not event.inputs and not event.is_number
    return is_new and not is_constant(seen.expression(event))


def _flows(seen: Watched, there: int, here: int) -> bool:
    """Say whether numbers that left by one event went into another, by the names in the code."""
    places = [seen.events[there].place, seen.events[here].place]
    if min(places) < 0:
        return False
    (first, _, file), (second, _, other) = map(seen.at, places)
    if file != other:
        return False
    return flows("".join(notebook.source_lines(file)), first.lineno, second.lineno)


def _guessed(seen: Watched, there: int, here: int) -> Cut:
    """Say that numbers left and that some came in, where nothing shows that they are the same."""
    out, back = _called(seen, seen.events[there]), _called(seen, seen.events[here])
    is_number = seen.events[here].number is not None
    what = "takes a number" if is_number else "makes a tensor of numbers"
    why = f"its numbers leave torch at {out}, and {back} {what} from outside of torch; {GUESSED}"
    return Cut(why, "", seen.line(seen.events[there]), is_cut=False)


def _called(seen: Watched, event: Event) -> str:
    line = seen.line(event)
    return f"`{seen.expression(event) or event.op}`" + (f" in {line.label}" if line else "")


def _stopped(seen: Watched, stop: int, within: set[int]) -> Cut:
    """Describe the operation that ended a path, or that by which its numbers left torch later."""
    later = seen.made_from([stop]) & within
    left = next((n for n in sorted(later) if seen.events[n].op in LEAVING), None)
    if left is None:
        return _described(seen, seen.events[stop])
    took = [n for n in sorted(within) if any(event_of(v) == left for v in seen.events[n].inputs)]
    return _left(seen, left, took[0] if took else left)


def _left(seen: Watched, there: int, here: int) -> Cut:
    """Say where numbers left torch that came back at another event."""
    event, back = seen.events[there], seen.events[here]
    line, piece = seen.line(event), seen.expression(event)
    what = "makes a Python number of it"
    if event.op == TOLIST:
        what = "makes Python numbers of it"
    elif event.op == NUMPY:
        what = "takes it to NumPy, whose arrays carry no gradient"
    why = f"{_called(seen, event)} {what}"
    if line is None:
        return Cut(why)
    if seen.line(back) != line:
        why += f", and {_called(seen, back)} takes it up again"
    mend = kept_in_torch(line.text, piece)
    if not mend and (takes_a_number(back.op) or sets_an_item(line.text)):
        mend = without(line.text, piece, ".item()")
    return Cut(why, _mended(line, mend), line)


def _mended(line: SourceLine | None, mend: str) -> str:
    """Say to delete a line that would do nothing more once it is mended."""
    if line is not None and sets_to_itself(mend):
        return f"# delete {line.label}: {line.text}"
    return mend


def _described(seen: Watched, event: Event) -> Cut:
    """Say in the user's own words why an operation's output carries no gradient."""
    line = seen.line(event)
    piece = seen.expression(event) or event.op
    what = f"`{piece}`" + (f" in {line.label}" if line else "")
    text = line.text if line else ""
    if not event.grad_enabled:
        return _without_gradients(seen, event)
    if event.op == "aten::detach":
        ending = ".data" if piece.endswith(".data") else ".detach()"
        mend = without(text, piece, ending) or unwrapped(text, piece)
        if line is not None and text == f".{piece}":  # of an expression over several lines
            mend = f"# delete {line.label}: {text}"
        return Cut(f"{what} cuts it off", _mended(line, mend), line)
    if event.is_number:
        made = "booleans" if event.is_bool else "integers"
        return Cut(f"{what} makes {made} of it, which have no gradient", "", line)
    if event.op in INDEXING and event.gives.get(0, True):
        return Cut(f"only the indices of {what} go on, integers which have no gradient", "", line)
    return Cut(f"{what} ({event.op}) gives no gradient", "", line)


def _without_gradients(seen: Watched, event: Event) -> Cut:
    """Name the user's call that is right inside of ``no_grad``, and the line of that."""
    places = [place for place in (event.place, *event.around) if place >= 0]
    for place in places:
        line, piece, file = seen.at(place)
        lines = notebook.source_lines(file)
        at = enclosing_no_grad("".join(lines), line.lineno)
        if at is not None:
            where = SourceLine(line.cell, line.file, at, lines[at - 1].strip())
            block = where.text.removeprefix("with ").partition("):")[0]
            block += ")" if block.count("(") > block.count(")") else ""
            why = f"`{piece or line.text}` in {line.label} runs under `{block.rstrip(':')}`"
            if at == line.lineno:  # all on one line
                return Cut(f"{why}; run it outside of that", piece, line)
            return Cut(f"{why} ({where.label}); run this line outside of it", line.text, line)
    if not places:
        return Cut(f"`{event.op}` runs under `torch.no_grad()`")
    said = [(line, piece or line.text) for line, piece, _ in map(seen.at, places)]
    for line, piece in said:
        if "checkpoint(" in piece:
            why = (
                f"`{piece}` in {line.label} got no input that requires grad, without which a "
                "reentrant checkpoint switches gradients off; `use_reentrant=False` needs none"
            )
            return Cut(why, "", line)
        if ".apply(" in piece:
            why = (
                f"`{piece}` in {line.label} gives no gradient: the forward of a "
                "`torch.autograd.Function` runs without gradients, and what goes on from it is marked "
                "as non-differentiable, or was not returned by it"
            )
            return Cut(why, "", line)
    line, piece = said[-1]
    return Cut(f"`{piece}` in {line.label} runs where gradients are switched off", "", line)


def made_without_grad(seen: Watched, leaf: Any, storage: Any) -> Cut | None:
    """Find out whether a leaf was computed from what requires grad, and where the way was cut.

    Returns:
        The cut, with `copy_of` set if it did nothing but copy one tensor; None for a leaf that
        owes nothing to anybody.
    """
    value = seen.maker(leaf)
    number = event_of(value) if value is not None else seen.giver(storage)
    if number is None:
        return None
    behind = seen.behind(number, seen.settings(seen.leaf_storages() - {storage}))
    sources = {
        id(tensor): tensor
        for event in behind
        for tensor in (seen.externals[n]() for n in seen.events[event].externals)
        if tensor is not None and tensor is not leaf and tensor.requires_grad
    }
    if not sources:
        return None
    stops = [n for n in sorted(behind) if seen.events[n].takes_grad and _stops(seen.events[n])]
    if not stops:
        return None
    cut = _stopped(seen, stops[0], behind)
    only_copied = all(seen.events[n].op in COPYING for n in behind)
    if only_copied and len(sources) == 1:
        return cut._replace(copy_of=next(iter(sources.values())))
    return cut


def _stops(event: Event) -> bool:
    return not event.grad_enabled or event.op in {"aten::detach", *LEAVING} or event.is_number
