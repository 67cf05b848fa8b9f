"""From the names of what has grown to the one holder that they have in common."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
IN_A_LIST = re.compile(r"^list\((.+)\)\[\d+\](?=\.grad|$)")  # code for what has no place
LEAF = re.compile(r"^\(leaf of (.+)\)(?=\.grad|$)")
OPEN, CLOSE = "[", "]"
HOOK = re.compile(r"hook [^,]+")
NUMBERED = re.compile(r"(\.\d+(?=$|[.,])|, an? (?:element|key)(?=$|[.,]))")
LOOSE = {", an element", ", a key"}
MOST_PARTS = 4  # of one container that are told one by one


def plain(owner: str) -> str:
    """Name a leaf, and its gradient, after the graph that the leaf is of, or what it is a key of."""
    return IN_A_LIST.sub(r"\1, an element", LEAF.sub(r"\1", owner))


def pieces(owner: str) -> list[str]:
    """Cut a name into containers and items: ``a[0].b['x']`` is ``a``, ``[0]``, ``.b``, ``['x']``.

    Items are also the numbered parts of a model (``.0``) and what has no place to be named by
    (``, an element``).
    """
    hook = HOOK.match(owner)
    found = [hook[0]] if hook else []
    for part in _bracketed(owner[hook.end() :] if hook else owner):
        if part.startswith(OPEN):
            found.append(part)
        else:
            found += [one for one in NUMBERED.split(part) if one]
    return found


def _bracketed(owner: str) -> list[str]:
    """Cut a name at its outermost brackets."""
    found, start, depth, quote = list[str](), 0, 0, ""
    for at, char in enumerate(owner):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and depth:
            quote = char
        elif char == OPEN:
            if depth == 0 and at > start:
                found.append(owner[start:at])
                start = at
            depth += 1
        elif char == CLOSE and depth:
            depth -= 1
            if depth == 0:
                found.append(owner[start : at + 1])
                start = at + 1
    return [*found, owner[start:]] if start < len(owner) else found


@dataclass(frozen=True, slots=True)
class Held(Generic[Item]):
    """What one holder keeps.

    Attributes:
        holder: its name.
        members: what it keeps.
        is_container: it keeps them as items, and gets more of those.
    """

    holder: str
    members: list[Item]
    is_container: bool


class _Named(NamedTuple, Generic[Item]):
    parts: list[str]
    time: int
    item: Item


def by_container(
    items: Iterable[Item], owner: Callable[[Item], str], time: Callable[[Item], int]
) -> list[Held[Item]]:
    """Group what is held by items of one container under the container's name.

    ``models[0].weight`` and ``models[1].bias`` both become ``models``; of ``state['a'][0]`` and
    ``state['a'][1]`` the container is ``state['a']``. What has a name for itself stays alone.

    A container whose items stay the same, each of which keeps something of several times, does not
    grow itself: it is the items that do, as in ``metrics['loss'][0]``, ``metrics['accuracy'][0]``.
    """
    return _split([_Named(pieces(owner(one)), time(one), one) for one in items], 0)


def _split(named: list[_Named[Item]], depth: int) -> list[Held[Item]]:
    groups: dict[str, list[_Named[Item]]] = defaultdict(list)
    for one in named:
        groups[one.parts[depth] if depth < len(one.parts) else ""].append(one)
    are_items = depth > 0 and all(map(is_item, groups))
    is_several = len(groups) > 1 or is_ambiguous(next(iter(groups), ""))
    whole = "".join(named[0].parts[:depth]) if named else ""
    if are_items and is_several and not _stay(groups):
        return [Held(whole, [one.item for one in named], is_container=True)]
    found = list[Held[Item]]()
    for name, group in groups.items():
        if name:
            found += _split(group, depth + 1)
        else:
            found.append(Held("".join(group[0].parts), [one.item for one in group], False))
    grow_inside = any(one.is_container for one in found) and len(found) <= MOST_PARTS
    if are_items and is_several and not grow_inside:
        return [Held(whole, [one.item for one in named], is_container=False)]
    return found


def _stay(groups: dict[str, list[_Named[Item]]]) -> bool:
    """Say whether the items stay: most keep something of several times, or there are too few."""
    many = [
        len({one.time for one in group}) > 1 and not is_ambiguous(name)
        for name, group in groups.items()
    ]
    n_times = len({one.time for group in groups.values() for one in group})
    return any(many) and (2 * sum(many) > len(many) or len(many) < n_times)


def is_ambiguous(part: str) -> bool:
    """Say whether several items may read alike."""
    return part in LOOSE or part.startswith("[<")


def is_item(part: str) -> bool:
    """Say whether a piece of a name is an item of what stands before it."""
    return part.startswith(OPEN) or part in LOOSE or (part[:1] == "." and part[1:].isdigit())


def item_of(owner: str, holder: str) -> str:
    """Give the item of the holder that an owner's name goes through, "" if through none."""
    taken = ""
    for part in pieces(owner):
        if taken == holder:
            return part if is_item(part) else ""
        taken += part
    return ""


def common_start(owners: list[str]) -> str:
    """Give the part that several dotted names begin with: ``head`` of ``head.next.next``."""
    split = [owner.split(".") for owner in owners]
    same = [parts[0] for parts in zip(*split, strict=False) if len(set(parts)) == 1]
    n = next(
        (i for i, parts in enumerate(zip(*split, strict=False)) if len(set(parts)) > 1), len(same)
    )
    return ".".join(same[:n]) or min(owners, key=len)
