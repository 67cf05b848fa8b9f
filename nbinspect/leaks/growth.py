"""From what survived each repetition to what grows, who holds it and how to mend it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from nbinspect import notebook
from nbinspect.holders import Census, Claim, HeldStorage
from nbinspect.holders.unreachable import COLLECTABLE, UNCOLLECTABLE
from nbinspect.leaks.owners import by_container, common_start, item_of, plain
from nbinspect.leaks.patterns import Evidence, recognised, sentence
from nbinspect.leaks.records import Growth
from nbinspect.memory.tracker import LiveStorage
from nbinspect.ops import Site
from nbinspect.records import SourceLine
from nbinspect.referrers.answer import refchain

MOST_GROWTHS = 12
CACHE = re.compile(r"lru_cache of ([\w.]+)")
UNKNOWN = Claim("OTHER", "something that cannot be seen from Python")


@dataclass(frozen=True, slots=True)
class Survivor:
    """A storage that a repetition made and that is alive at the end.

    Attributes:
        round: the repetition, from 0.
        ref: the storage, weakly.
        held: who holds it, None if the census has not seen it.
    """

    round: int
    ref: LiveStorage
    held: HeldStorage | None

    @property
    def claim(self) -> Claim:
        """The holder that it is charged to."""
        return self.held.claims[0] if self.held is not None else UNKNOWN

    @property
    def state(self) -> str:
        """Whether a name leads to it, or only a cycle keeps it."""
        return {COLLECTABLE: "garbage", UNCOLLECTABLE: "uncollectable"}.get(self.claim.why, "live")

    @property
    def site(self) -> Site:
        """The line that made it."""
        return self.ref.origin.site if self.ref.origin is not None else None


def survivors(found: Iterable[tuple[int, LiveStorage]], seen: Census) -> list[Survivor]:
    """Put storages and their holders together."""
    held = {handle: one for one in seen.storages for handle in one.handles}
    return [Survivor(number, ref, held.get(ref.key)) for number, ref in found]


def growths(everything: list[Survivor], n_warmup: int, n_rounds: int) -> tuple[Growth, ...]:
    """Tell what grows from what was only replaced, filled once, or made late.

    What grows has survivors of most repetitions, and of the last ones too. The very last is not
    asked: what it made may still be in use.

    Args:
        everything: survivors of all repetitions.
        n_warmup: repetitions that do not count.
        n_rounds: repetitions in all.
    """
    counted = [one for one in everything if one.round >= n_warmup]
    first, last = n_warmup, n_rounds - 1
    groups = by_holder(counted)
    found = [group for group in groups if _grows(group, first, last)]
    rest = [one for group in groups if not _grows(group, first, last) for one in group]
    # A linked list has another name for each of its items: then the line tells them together.
    found += [group for group in _by_line(rest) if _grows(group, first, last)]
    told = [
        growth_of(group, first, last)
        for group in sorted(found, key=lambda group: -size_of(group))[:MOST_GROWTHS]
    ]
    return tuple(sorted(told, key=lambda one: -one.bytes_per_run))


def size_of(group: list[Survivor]) -> int:
    """Sum the bytes of a group."""
    return sum(one.ref.size_bytes for one in group)


def by_holder(found: list[Survivor]) -> list[list[Survivor]]:
    """Group by what keeps them: one container, or one name."""
    states: dict[tuple[str, str], list[Survivor]] = defaultdict(list)
    for one in found:
        states[one.state, one.ref.device].append(one)
    return [
        group
        for members in states.values()
        for group in by_container(members, lambda one: plain(one.claim.owner)).values()
    ]


def _by_line(found: list[Survivor]) -> list[list[Survivor]]:
    lines: dict[tuple[str, str, Site], list[Survivor]] = defaultdict(list)
    for one in found:
        lines[one.state, one.ref.device, one.site].append(one)
    return list(lines.values())


def _grows(group: list[Survivor], first: int, last: int) -> bool:
    rounds = {one.round for one in group}
    if group[0].state == "garbage":  # Python's collector may have taken the earlier ones
        return len(rounds) > 1 and last in rounds
    asked = rounds & set(range(first, max(first + 1, last)))
    return 2 * len(asked) > last - first and bool(rounds & {last - 1, last})


def growth_of(group: list[Survivor], first: int, last: int) -> Growth:
    """Describe what one holder keeps of the repetitions from `first` on; `last` may be unfinished."""
    whole = [one for one in group if one.round < last or last == first] or group
    n_rounds = len({one.round for one in whole}) if group[0].state == "garbage" else last - first
    n_rounds = max(1, n_rounds)
    holder, container = _holder(group)
    items = {(one.round, item_of(plain(one.claim.owner), holder)) for one in whole}
    n_items = sum(bool(item) for _, item in items) if container else 0
    evidence = _evidence(group, holder, container)
    pattern = recognised(evidence)
    kinds = evidence.kinds
    return Growth(
        bytes_per_run=round(sum(one.ref.size_bytes for one in whole) / n_rounds),
        tensors_per_run=len(whole) / n_rounds,
        items_per_run=n_items / n_rounds,
        holder=holder,
        container=container,
        kind=max(kinds, key=lambda kind: kinds[kind]),
        device=group[0].ref.device,
        where=_where(group),
        chain=evidence.chain,
        mend=sentence(pattern),
        code=pattern.code,
        pattern=pattern.name,
        state=group[0].state,
    )


def _holder(group: list[Survivor]) -> tuple[str, str]:
    """Name what the group has in common, and the type of the container that it is, if it is one."""
    owners = [plain(one.claim.owner) for one in group]
    together = by_container(owners, str)
    if len(together) > 1:  # told together by their line
        return common_start(owners), ""
    (holder,) = together
    if cache := CACHE.match(holder):
        return cache[1], "lru_cache"
    inside = [one for one in group if item_of(plain(one.claim.owner), holder)]
    if not inside:
        return holder, ""
    # An item may be a container of the tensors itself: then its key tells what it is an item of.
    direct = [one for one in inside if plain(one.claim.owner).endswith("]")]
    found = Counter(one.claim.container for one in direct if one.claim.container)
    key = item_of(plain(inside[0].claim.owner), holder)
    return holder, found.most_common(1)[0][0] if found else "dict" if "'" in key else "list"


def _evidence(group: list[Survivor], holder: str, container: str) -> Evidence:
    kinds: dict[str, int] = defaultdict(int)
    for one in group:
        kinds[one.claim.kind] += one.ref.size_bytes
    ranked = sorted(group, key=lambda one: (-one.ref.size_bytes, one.round))
    seen = [one.held for one in group if one.held is not None]
    size = sum(one.size_bytes for one in seen)
    own = [one for one in group if one.held is not None and one.claim.kind == "VARIABLE"]
    return Evidence(
        holder=holder,
        container=container,
        kinds=dict(kinds),
        claims=tuple(dict.fromkeys(one.claim for one in group)),
        state=group[0].state,
        used_fraction=sum(one.used_bytes for one in seen) / size if size else 1.0,
        is_scalar=bool(own)
        and all(one.held.tensor.startswith("scalar") for one in own if one.held),
        sites=tuple({one.site for one in group}),
        report=refchain(ranked[0].ref(), name=holder),
    )


def _where(group: list[Survivor]) -> SourceLine | None:
    """Give the line that allocated most of a group."""
    sizes: dict[Site, int] = defaultdict(int)
    for one in group:
        if one.site is not None:
            sizes[one.site] += one.ref.size_bytes
    site = max(sizes, key=lambda one: sizes[one], default=None)
    return notebook.source_line(*site) if site is not None else None
