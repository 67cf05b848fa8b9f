"""From the names of what has grown to the one holder that they have in common."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
LEAF = re.compile(r"^\(leaf of (.+)\)(?=\.grad)")
OPEN, CLOSE = "[", "]"


def plain(owner: str) -> str:
    """Name a leaf's gradient after the graph that the leaf is of."""
    return LEAF.sub(r"\1", owner)


def pieces(owner: str) -> list[str]:
    """Cut a name at its outermost brackets: ``a[0].b['x']`` is ``a``, ``[0]``, ``.b``, ``['x']``."""
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


def by_container(items: Iterable[Item], owner: Callable[[Item], str]) -> dict[str, list[Item]]:
    """Group what is held by items of one container under the container's name.

    ``models[0].weight`` and ``models[1].bias`` both become ``models``; of ``state['a'][0]`` and
    ``state['a'][1]`` the container is ``state['a']``. What has a name for itself stays alone.
    """
    return _split([(pieces(owner(one)), one) for one in items], 0)


def _split(named: list[tuple[list[str], Item]], depth: int) -> dict[str, list[Item]]:
    groups: dict[str, list[tuple[list[str], Item]]] = defaultdict(list)
    for parts, item in named:
        groups[parts[depth] if depth < len(parts) else ""].append((parts, item))
    found: dict[str, list[Item]] = defaultdict(list)
    if depth and len(groups) > 1 and all(_is_item(name) for name in groups):
        prefix = "".join(named[0][0][:depth])
        found[prefix] = [item for _, item in named]
        return found
    for name, group in groups.items():
        if not name:
            found["".join(group[0][0])] += [item for _, item in group]
        else:
            for holder, items in _split(group, depth + 1).items():
                found[holder] += items
    return found


def _is_item(name: str) -> bool:
    return name.startswith(OPEN)


def item_of(owner: str, holder: str) -> str:
    """Give the item of the holder that an owner's name goes through, "" if through none."""
    taken = ""
    for part in pieces(owner):
        if taken == holder:
            return part if _is_item(part) else ""
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
