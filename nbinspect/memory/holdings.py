"""From single storages to the lines of a table: one holding per holder, runs of items as one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

from nbinspect.holders import KINDS, HeldStorage
from nbinspect.records import Holding

ITEM = re.compile(r"\[(\d+)\]")
TOGETHER = {"SAVED_FOR_BACKWARD", "HOOK", "DATALOADER"}  # nobody made these items one by one
SAVED_BY = "saved by "
N_NODES = 3  # kinds of autograd node that a note names
LONGEST_LIST = 8  # items of one list that are shown one by one


@lru_cache(maxsize=4096)
def pattern(name: str) -> str:
    """Give a holder's name without its item numbers: ``losses[#]``."""
    return ITEM.sub("[#]", name)


def holdings(storages: Iterable[HeldStorage]) -> tuple[Holding, ...]:
    """Group storages by the holder that each is charged to, the largest group first.

    What graphs save is grouped by the list whose items keep the graphs, e.g. ``losses[0..99]``;
    so are the items of other lists where there are many.
    """
    groups: dict[tuple[str, str], list[HeldStorage]] = defaultdict(list)
    for storage in storages:
        claim = storage.claims[0]
        groups[claim.kind, pattern(claim.owner)].append(storage)
    found = [
        _holding(kind, members)
        for (kind, _), group in groups.items()
        for members in _split(kind, group)
    ]
    return tuple(sorted(found, key=lambda one: (-one.size_bytes, KINDS.index(one.kind), one.owner)))


def _split(kind: str, group: list[HeldStorage]) -> list[list[HeldStorage]]:
    """Keep a short list's items apart; what one graph or hook saves always stays together."""
    owners: dict[str, list[HeldStorage]] = defaultdict(list)
    for storage in group:
        owners[storage.claims[0].owner].append(storage)
    if kind in TOGETHER or len(owners) > LONGEST_LIST:
        return [group]
    return list(owners.values())


def _holding(kind: str, group: list[HeldStorage]) -> Holding:
    owner = item_range(sorted({one.claims[0].owner for one in group}))
    own = (kind, pattern(group[0].claims[0].owner))
    also = dict.fromkeys(
        f"{claim.kind} {claim.owner}"
        for one in group
        for claim in one.claims[1:]
        if (claim.kind, pattern(claim.owner)) != own
    )
    size = sum(one.size_bytes for one in group)
    return Holding(kind, owner, size, len(group), tuple(also)[:8], _note(group))


def item_range(names: list[str]) -> str:
    """Merge names that differ in their item numbers only: ``losses[0..99]``."""
    numbers = [[int(number) for number in ITEM.findall(name)] for name in names]
    ranges = iter([(min(column), max(column)) for column in zip(*numbers, strict=True)])

    def merged(_match: re.Match[str]) -> str:
        low, high = next(ranges)
        return f"[{low}]" if low == high else f"[{low}..{high}]"

    return ITEM.sub(merged, names[0])


def _note(group: list[HeldStorage]) -> str:
    """Say what the group is: one tensor's shape, or what saved it, the most bytes first."""
    reasons: dict[str, int] = defaultdict(int)
    for one in group:
        reasons[one.claims[0].why] += one.size_bytes
    ranked = sorted(reasons, key=lambda why: -reasons[why])
    nodes = [why.removeprefix(SAVED_BY) for why in ranked if why.startswith(SAVED_BY)]
    others = [why for why in ranked if why and not why.startswith(SAVED_BY)]
    if len(group) > 1:
        others = [why.replace("a leaf of", "leaves of") for why in others]
    shape = group[0].tensor if len(group) == 1 else ""
    return ", ".join(part for part in (shape, _saved_by(nodes), *others[:2]) if part)


def _saved_by(nodes: list[str]) -> str:
    shown, n_more = nodes[:N_NODES], len(nodes) - N_NODES
    more = f" and {n_more} more" if n_more > 0 else ""
    return f"{SAVED_BY}{', '.join(shown)}{more}" if shown else ""
