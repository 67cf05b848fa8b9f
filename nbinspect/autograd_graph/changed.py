"""Saved tensors that were changed in place since: by what, and how to do without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nbinspect import _torch
from nbinspect.autograd_graph.anew import out_of_place
from nbinspect.autograd_graph.mends import sets_an_item
from nbinspect.autograd_graph.question import Question, by_module, listed
from nbinspect.autograd_graph.records import AutogradNode, GraphFinding
from nbinspect.autograd_graph.walk import is_leaf
from nbinspect.autograd_graph.watched import Event
from nbinspect.heapgraph.objects import own_dict
from nbinspect.records import SourceLine, as_code
from nbinspect.tensors import describe, storage_key


@dataclass(slots=True)
class _Changed:
    """One storage that was changed after it was saved.

    Attributes:
        name: the user's name for it, "" for none.
        what: its name and what it is.
        is_kept: it is a parameter's or a buffer's.
        saves: what saved it, and in which slot.
        event: what changed it, None if that was not watched.
    """

    name: str
    what: str
    is_kept: bool
    saves: list[tuple[AutogradNode, str]] = field(default_factory=list)
    event: Event | None = None


def modified(question: Question, joined: set[int]) -> Iterator[GraphFinding]:
    """Saved tensors that were changed in place: backward will raise.

    Parameters and buffers that one line changed, or an optimizer's step, are told together.
    """
    groups: dict[Any, list[tuple[AutogradNode, str, Any, str]]] = defaultdict(list)
    for node, facts in zip(question.walked.nodes, question.facts.nodes, strict=True):
        if is_leaf(node) or facts.key in joined:
            continue
        for slot, tensor, said in _torch.saved_changed(node):
            groups[storage_key(tensor)].append((facts, slot, tensor, said))
    writes = _writes(question) if groups else {}
    causes: dict[Any, list[_Changed]] = defaultdict(list)
    for key, some in groups.items():
        one = _changed(question, some, writes.get(key, []))
        place = one.event.place if one.event is not None else None
        causes[place if one.is_kept else key].append(one)
    for together in causes.values():
        yield _told(question, together)


def _writes(question: Question) -> dict[Any, list[tuple[int, int]]]:
    """Give (version, event) of each write by storage, in the order they ran."""
    found: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for write in question.seen.writes:
        found[write.storage].append((write.version, write.event))
    return found


def _changed(
    question: Question,
    some: list[tuple[AutogradNode, str, Any, str]],
    writes: list[tuple[int, int]],
) -> _Changed:
    facts, slot, tensor, said = some[0]
    saved = next((one for one in facts.saved if one.slot == slot), None)
    name = (saved.name if saved else "") or question.names.tensor(tensor)
    name = name or next(iter(_same_bytes(question, tensor)), "")
    what = f"`{name}` ({describe(tensor)})" if name else f"A tensor ({describe(tensor)})"
    expected = _expected_version(said)
    number = next((event for version, event in writes if version > expected), None)
    event = question.seen.events.get(number) if number is not None else None
    is_kept = saved is not None and saved.kind == "PARAMETER"
    return _Changed(name, what, is_kept, [(one, at) for one, at, *_ in some], event)


def _same_bytes(question: Question, tensor: Any) -> list[str]:
    """Name variables that look into the same storage."""
    key = storage_key(tensor)
    return question.names.by_storage.get(key, []) if key is not None else []


def _expected_version(said: str) -> int:
    """Read the version that backward expects out of torch's sentence."""
    digits = said.rpartition("expected version ")[2].split(" ")[0]
    return int(digits) if digits.isdigit() else -1


def _told(question: Question, together: list[_Changed]) -> GraphFinding:
    """Say what one cause has changed."""
    first = together[0]
    facts, slot = first.saves[0]
    where = f" in `{facts.module}`" if facts.module else ""
    others = sum(len(one.saves) for one in together) - 1
    more = f" and {others} more" if others else ""
    names = [one.name for one in together if one.name]
    what, was = first.what, "was"
    if len(together) > 1:
        are_parameters = question.names.buffers.keys().isdisjoint(names)
        what, was = listed(by_module(names, question) if are_parameters else names), "were"
    line, by, mend = _cause(question, first)
    sentence = (
        f"{what}, which `{facts.name}`{where}{more} saved as `{slot}`, {was} changed in place "
        f"afterwards{by}: backward will raise an error."
    )
    if first.is_kept:
        sentence += _advice(question, together, is_known=line is not None)
        mend = mend if mend.endswith(NOT_IN_PLACE) else ""
    elif not mend:
        sentence += " Change a copy of it instead, or write the operation out of place."
    keys = tuple(dict.fromkeys(node.key for one in together for node, _ in one.saves))
    return GraphFinding("MODIFIED", sentence, mend, tuple(names), line, keys)


NOT_IN_PLACE = ".inplace = False"


def _advice(question: Question, together: list[_Changed], *, is_known: bool) -> str:
    """Say when a parameter or a buffer may be changed."""
    them = "them" if len(together) > 1 else "it"
    if any(one.name in question.names.buffers for one in together):
        return f" Change {them} after backward, or give the forward a copy: `.clone()`."
    if is_known:
        return f" Change {them} after backward, or run the forward again after that."
    return (
        " An optimizer's step does that: go backward before it, or run the forward again after it."
    )


def _cause(question: Question, one: _Changed) -> tuple[SourceLine | None, str, str]:
    """Give the line that changed a tensor, what is said of it, and the mend."""
    event, seen = one.event, question.seen
    line = seen.line(event) if event is not None else None
    if event is None or line is None:
        return None, f" by `{event.op}`" if event is not None else "", ""
    module = _in_place_module(question, event)
    if module:
        by = f" by `{module}`, whose `inplace` is True, in {line.label}"
        return line, by, f"{as_code(module)}{NOT_IN_PLACE}"
    piece = line.text if sets_an_item(line.text) else seen.expression(event) or event.op
    return line, f" by `{piece}` in {line.label}", out_of_place(line.text, one.name)


def _in_place_module(question: Question, event: Event) -> str:
    """Name the module that ran an operation because its ``inplace`` is True, "" for none."""
    for ref, name in question.seen.module_names if event.module else ():
        module = ref()
        if name == event.module and module is not None:
            is_so = (own_dict(module) or {}).get("inplace") is True
            return question.names.modules.get(id(module), name) if is_so else ""
    return ""
