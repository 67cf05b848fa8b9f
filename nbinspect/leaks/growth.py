"""From what survived each repetition to what grows, who holds it and how to mend it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from nbinspect import notebook
from nbinspect.heapgraph.resolving import NOTHING, resolved
from nbinspect.holders import Census, Claim, HeldStorage
from nbinspect.holders.unreachable import COLLECTABLE, UNCOLLECTABLE
from nbinspect.leaks.containers import container_name
from nbinspect.leaks.owners import Held, by_container, common_start, is_ambiguous, item_of, plain
from nbinspect.leaks.patterns import CACHE, Evidence, recognised, sentence, without_frame
from nbinspect.leaks.records import Growth
from nbinspect.leaks.rounds import Line
from nbinspect.memory.tracker import LiveStorage
from nbinspect.ops import Site
from nbinspect.records import SourceLine
from nbinspect.referrers.answer import refchain
from nbinspect.referrers.mends import mend
from nbinspect.referrers.records import Chain

MOST_GROWTHS = 12
HOOK = "hook "
GRAPH_ALONE = "a graph that keeps no tensor"
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


def growths(
    everything: list[Survivor], n_warmup: int, n_rounds: int, lines: Mapping[Line, int]
) -> tuple[Growth, ...]:
    """Tell what grows from what was only replaced, filled once, or made late.

    What grows has survivors of most repetitions, and of the last ones too. The very last is not
    asked: what it made may still be in use.

    Args:
        everything: survivors of all repetitions.
        n_warmup: repetitions that do not count.
        n_rounds: repetitions in all.
        lines: those whose tensors take more after every repetition, with the bytes of each.
    """
    counted = [one for one in everything if one.round >= n_warmup]
    first, last = n_warmup, n_rounds - 1
    groups = by_holder(counted)
    found, rest = list[Held[Survivor]](), list[Survivor]()
    for group in groups:
        if _grows(group.members, first, last):
            found.append(group)
        else:
            rest += group.members
    # A linked list has another name for each of its items: then the line tells them together.
    found += _joined(group for group in _by_line(rest) if _grows(group.members, first, last))
    found.sort(key=lambda group: -size_of(group.members))
    told = [growth_of(group, first, last) for group in found[:MOST_GROWTHS]]
    known = {(one.ref.device, one.site) for group in found for one in group.members}
    unknown = {line: size for line, size in lines.items() if line not in known}
    told += _replaced(everything, unknown, {one.holder for one in told})
    return tuple(sorted(told, key=lambda one: -one.bytes_per_run))


def size_of(group: list[Survivor]) -> int:
    """Sum the bytes of a group."""
    return sum(one.ref.size_bytes for one in group)


def by_holder(found: list[Survivor]) -> list[Held[Survivor]]:
    """Group by what keeps them: one container, or one name."""
    states: dict[tuple[str, str], list[Survivor]] = defaultdict(list)
    for one in found:
        states[one.state, one.ref.device].append(one)
    return [
        group
        for members in states.values()
        for group in by_container(members, _owner, lambda one: one.round)
    ]


def _owner(one: Survivor) -> str:
    return plain(one.claim.owner)


def _by_line(found: list[Survivor]) -> list[Held[Survivor]]:
    lines: dict[tuple[str, str, Site], list[Survivor]] = defaultdict(list)
    for one in found:
        lines[one.state, one.ref.device, one.site].append(one)
    return [Held(common_start(list(map(_owner, group))), group, False) for group in lines.values()]


def _joined(found: Iterable[Held[Survivor]]) -> list[Held[Survivor]]:
    """Put together what several lines made and one holder keeps."""
    groups: dict[tuple[str, str, str], list[Survivor]] = defaultdict(list)
    for one in found:
        first = one.members[0]
        groups[one.holder, first.state, first.ref.device] += one.members
    return [Held(holder, members, False) for (holder, _, _), members in groups.items()]


def _grows(group: list[Survivor], first: int, last: int) -> bool:
    rounds = {one.round for one in group}
    if group[0].state == "garbage":  # Python's collector may have taken the earlier ones
        return len(rounds) > 1 and last in rounds
    return in_most(rounds, first, last)


def in_most(rounds: set[int], first: int, last: int) -> bool:
    """Say whether something is of most repetitions; the very last is asked only for a sign of life."""
    asked = rounds & set(range(first, max(first + 1, last)))
    return 2 * len(asked) > last - first and bool(rounds & {last - 1, last})


def growth_of(held: Held[Survivor], first: int, last: int) -> Growth:
    """Describe what one holder keeps of the repetitions from `first` on; `last` may be unfinished."""
    group = held.members
    whole = [one for one in group if one.round < last or last == first] or group
    n_rounds = len({one.round for one in whole}) if group[0].state == "garbage" else last - first
    n_rounds = max(1, n_rounds)
    holder, container = _holder(held)
    items = {(one.round, item_of(_owner(one), holder)) for one in whole}
    known = _evidence(group, holder, container)
    pattern = recognised(known)
    kinds = known.kinds
    return Growth(
        bytes_per_run=round(sum(one.ref.size_bytes for one in whole) / n_rounds),
        tensors_per_run=len(whole) / n_rounds,
        items_per_run=sum(map(_is_countable, items)) / n_rounds if held.is_container else 0,
        holder=holder,
        container=container,
        kind=max(kinds, key=lambda kind: kinds[kind]),
        device=group[0].ref.device,
        where=_where(group),
        chain=known.chain,
        mend=sentence(pattern),
        code=pattern.code,
        pattern=pattern.name,
        state=group[0].state,
    )


def _replaced(
    everything: list[Survivor], lines: Mapping[Line, int], known: set[str]
) -> Iterator[Growth]:
    """Describe what is replaced by something larger each time, by the line that makes it."""
    for line, bytes_per_run in lines.items():
        made = [one for one in everything if (one.ref.device, one.site) == line]
        largest = max(made, key=lambda one: one.ref.size_bytes, default=None)
        if largest is None or _owner(largest) in known:
            continue
        held = Held(_owner(largest), [largest], is_container=False)
        name = without_frame(held.holder)
        yield replace(
            growth_of(held, 0, 0),
            bytes_per_run=bytes_per_run,
            tensors_per_run=0,
            mend=(
                f"`{name}` is replaced by a larger tensor each time: keep only its last rows, or "
                "collect the parts in a list on the CPU and join them once."
            ),
            code="",
            pattern="tensor that gets longer",
        )


def _is_countable(item: tuple[int, str]) -> bool:
    """Say whether an item's name tells it from the others."""
    return bool(item[1]) and not is_ambiguous(item[1])


def _holder(held: Held[Survivor]) -> tuple[str, str]:
    """Name what a group has in common, and the type of the container that it is, if it is one."""
    if cache := CACHE.match(held.holder):
        return cache[1], "lru_cache"
    if not held.is_container:
        return held.holder, ""
    value = resolved(held.holder)
    if value is not NOTHING:
        return held.holder, container_name(value)
    # An item may be a container of the tensors itself: then its key tells what it is an item of.
    parts = {item_of(_owner(one), held.holder): one for one in held.members}
    direct = [one for item, one in parts.items() if _owner(one) == held.holder + item]
    found = Counter(one.claim.container for one in direct if one.claim.container)
    key = next(iter(parts))
    named = "set" if key == ", an element" else "dict" if key[1:2] in "'<" else "list"
    return held.holder, found.most_common(1)[0][0].removeprefix("mixed ") if found else named


def _evidence(group: list[Survivor], holder: str, container: str) -> Evidence:
    kinds: dict[str, int] = defaultdict(int)
    for one in group:
        kinds[one.claim.kind] += one.ref.size_bytes
    ranked = sorted(group, key=lambda one: (-one.ref.size_bytes, one.round))
    seen = [one.held for one in group if one.held is not None]
    size = sum(one.size_bytes for one in seen)
    own = [one for one in group if one.held is not None and _is_own(one.claim)]
    chain = _chain(ranked[0], holder)
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
        chain=str(chain or ""),
        code=mend(chain, None)[1] if chain is not None else "",
        hooks=frozenset(_hooks_of(group, holder)) if HOOK in f"{holder}{chain}" else frozenset(),
    )


def _is_own(claim: Claim) -> bool:
    """Say whether a storage is what its owner's name means, not something that this keeps."""
    return claim.kind == "VARIABLE" or claim.why == GRAPH_ALONE


def _chain(one: Survivor, holder: str) -> Chain | None:
    """Give the chain to a storage that reads best."""
    chains = refchain(one.ref(), name=holder).chains
    return min(chains, key=lambda chain: ", a key" in str(chain), default=None)


def _hooks_of(group: list[Survivor], holder: str) -> Iterator[int]:
    """Tell the hooks apart through which the first and the last storage of a group are held."""
    for one in (min(group, key=_round), max(group, key=_round)):
        links = getattr(_chain(one, holder), "links", ())
        yield from (link.key for link in links if link.label.startswith(HOOK))


def _round(one: Survivor) -> int:
    return one.round


def _where(group: list[Survivor]) -> SourceLine | None:
    """Give the line that allocated most of a group."""
    sizes: dict[Site, int] = defaultdict(int)
    for one in group:
        if one.site is not None:
            sizes[one.site] += one.ref.size_bytes
    site = max(sizes, key=lambda one: sizes[one], default=None)
    return notebook.source_line(*site) if site is not None else None
