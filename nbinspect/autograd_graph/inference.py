"""Which module made a node, where the forward was not watched: read off the parameters' names.

A node that takes a module's parameter is that module's. What lies between two such nodes belongs to
the innermost module that holds both; a container that runs nothing of its own (Sequential,
ModuleList) passes it to the part that ran last, or to a part without parameters that comes after
that, but to none of torch's own modules that makes no such operation: that ran outside of the
container. The last part of a container is given the same tail as its equals, since what follows it
is not in the container.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from nbinspect.autograd_graph.operations import CAST, LAST, OPENING, Operations, word

MOST_PAIRS = 500_000  # of operations and parts: a second
ONE_TO_ONE = {
    "ExpandBackward0",
    "PermuteBackward0",
    "SelectBackward0",
    "SliceBackward0",
    "SqueezeBackward0",
    "TBackward0",
    "ToCopyBackward0",
    "TransposeBackward0",
    "UnsafeViewBackward0",
    "UnsqueezeBackward0",
    "ViewBackward0",
}
"""Operations whose output is a view or a cast of their only input."""


@dataclass(slots=True)
class Surroundings:
    """What is known of each node: its name, its producers, and who owns it if it is a parameter.

    Attributes:
        names: torch's name of each node, in the order of the forward.
        producers: for each node the places of those that made its inputs.
        owners: modules by the place of a parameter's leaf; several for tied weights.
        types: class name by module fqn.
        containers: fqns of modules that run nothing of their own.
        known: what modules of torch's own can make, by fqn.
    """

    names: Sequence[str]
    producers: Sequence[Sequence[int]]
    owners: dict[int, list[str]]
    types: dict[str, str]
    containers: set[str] = field(default_factory=set)
    known: dict[str, Operations] = field(default_factory=dict)
    _parts: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def parts(self, container: str) -> list[str]:
        """Give what is right in a container, in the order in which it runs."""
        if not self._parts:
            for name in self.types:
                self._parts[name.rpartition(".")[0]].append(name)
        return self._parts[container]

    def can(self, module: str, operation: str) -> bool:
        """Say whether a module may have made an operation; one that is not known may make any."""
        known = self.known.get(module)
        return known is None or operation in known.words

    def around(self, module: str) -> str:
        """Give the innermost module around one that runs something of its own, "" for none."""
        module = module.rpartition(".")[0]
        while module in self.containers:
            module = module.rpartition(".")[0]
        return module


def infer_modules(about: Surroundings) -> list[str]:
    """Give a module's fqn for each node, "" where there is none.

    Cost: linear, times the number of modules without parameters in a row.
    Blind to: operations before a block's first parameter.
    """
    direct = _direct(about)
    modules = [module or "" for module in direct]
    known = [n for n, module in enumerate(direct) if module is not None]
    for before, upcoming in itertools.pairwise(known):  # before and after all modules is none
        gap = range(before + 1, upcoming)
        for n, module in zip(gap, _between(about, gap, direct), strict=True):
            modules[n] = module
    _give_tails(modules, direct, about)
    _end_last_call(modules, direct, about)
    return modules


def _direct(about: Surroundings) -> list[str | None]:
    """Give the owner of each node that takes a parameter, right or through views and casts of it."""
    pure: list[str | None] = [None] * len(about.names)  # a parameter, or a view or cast of one
    found: list[str | None] = [None] * len(about.names)
    uses: dict[int, int] = defaultdict(int)
    for n, producers in enumerate(about.producers):
        if n in about.owners:
            pure[n] = found[n] = about.owners[n][0]
            continue
        owned = [_owner(about, p, uses) if p in about.owners else pure[p] for p in producers]
        present = [one for one in owned if one is not None]
        if not present:
            continue
        found[n] = functools.reduce(shared_prefix, present) or None
        if (about.names[n] in ONE_TO_ONE and len(producers) == 1) or (
            len(present) == len(producers) and "WeightNorm" in about.names[n]
        ):
            pure[n] = found[n]
    return found


def _owner(about: Surroundings, leaf: int, uses: dict[int, int]) -> str:
    """Give the owner of one use of a parameter: tied weights are used in the owners' order."""
    owners = about.owners[leaf]
    use = uses[leaf]
    uses[leaf] += 1
    return owners[min(use, len(owners) - 1)]


def _between(about: Surroundings, gap: range, direct: Sequence[str | None]) -> list[str]:
    """Give the modules of the nodes that are between two that take parameters."""
    if not gap:
        return []
    last, following = direct[gap.start - 1] or "", direct[gap.stop] or ""
    common = shared_prefix(last, following)
    outside = common
    if common in about.known or common in about.containers:
        outside = about.around(common)
    if common in about.known and common.rpartition(".")[0] in about.containers:
        common = common.rpartition(".")[0]
    parts = _in_a_row(about, common, last, following)
    given = _shared_out(about, [word(about.names[n]) for n in gap], parts, following)
    return [outside if part is None else part for part in given]


def _in_a_row(about: Surroundings, common: str, last: str, following: str) -> list[str]:
    """Give the modules that may have run from one with parameters to another, in their order."""
    row: list[str] = []
    part = common
    while part in about.containers and part != last:
        inner = _part_towards(part, last)
        row = [*_skipped(about, part, inner, following), *row]
        part = inner
    led = _led_to(about, common, following) if common in about.containers else []
    return [part, *row, *led]


def _part_towards(container: str, module: str) -> str:
    """Give the part of a container that a module is or is in."""
    return f"{container}.{module[len(container) + 1 :].partition('.')[0]}"


def _skipped(about: Surroundings, container: str, part: str, following: str) -> list[str]:
    """Give what runs in a container after one part, up to the next that has parameters."""
    parts = about.parts(container)
    if part not in parts:
        return []
    rest = parts[parts.index(part) + 1 :]
    after = _part_towards(container, following) if following.startswith(f"{container}.") else ""
    if after in rest:
        rest = rest[: rest.index(after)]
    return _unpacked(about, rest)


def _led_to(about: Surroundings, container: str, following: str) -> list[str]:
    """Give what runs first in containers in a container before a module in them, and that one."""
    found: list[str] = []
    part = _part_towards(container, following)
    while part in about.containers and part != following:
        inner = _part_towards(part, following)
        parts = about.parts(part)
        found += _unpacked(about, parts[: parts.index(inner)] if inner in parts else [])
        part = inner
    return [*found, part] if part in about.known else found


def _unpacked(about: Surroundings, parts: Sequence[str]) -> list[str]:
    """Put what is in a container in its place."""
    found: list[str] = []
    todo = [*reversed(parts)]
    while todo:
        part = todo.pop()
        if part in about.containers:
            todo += reversed(about.parts(part))
        else:
            found.append(part)
    return found


def _shared_out(
    about: Surroundings, operations: list[str], parts: list[str], following: str
) -> list[str | None]:
    """Share out operations among parts that run in this order, so that most parts have some.

    Args:
        about: what is known of the parts.
        operations: in the order in which they ran; a cast is of whoever takes it.
        parts: the first, and the last if it is `following`, need none of them.
        following: takes what comes of the operations.

    Returns:
        A part for each operation, None where no part can have made it, or so many parts and
        operations are in a row that this cannot be told in time.
    """
    if len(operations) * len(parts) > MOST_PAIRS:
        return [None] * len(operations)
    # By the part that had the one before: how good the best choice for all that follow is.
    best = [(0, 0)] * len(parts)
    choices: list[list[int | None]] = []
    needy = [n > 0 and part != following for n, part in enumerate(parts)]
    for operation in reversed(operations):
        if operation != CAST:
            fits = _fits(about, operation, parts)
            chosen = _best_choices(fits, needy, best)
            best = [score for score, _, _ in chosen]
            choices.append([part for _, _, part in chosen])
    at, given = 0, list[str | None]()
    for choice in reversed(choices):
        part = choice[at]
        given.append(None if part is None else parts[part])
        at = at if part is None else part
    is_open = parts[-1] == following or parts[-1] not in about.known
    return _with_casts(operations, given, parts[-1] if is_open else None)


@dataclass(slots=True)
class _Fit:
    """How well an operation fits a part."""

    can: bool
    can_again: bool
    is_alike: bool
    is_opening: bool


def _fits(about: Surroundings, operation: str, parts: list[str]) -> list[_Fit]:
    found = []
    for n, part in enumerate(parts):
        can, known = about.can(part, operation), about.known.get(part)
        can = can and (n > 0 or known is None or operation in LAST)
        is_alike = _stem(about.types.get(part, "")) in operation.lower()
        can_again = can and not (known and known.is_one)
        found.append(_Fit(can, can_again, is_alike, operation == OPENING))
    return found


Choice = tuple[tuple[int, int], int, int | None]  # score, rank among equals, part


def _best_choices(fits: list[_Fit], needy: list[bool], best: list[tuple[int, int]]) -> list[Choice]:
    """Choose who made an operation, for each part that may have had the one before."""
    found: list[Choice] = []
    further: list[Choice] = []  # the best of the parts after this one, if any can have made it
    for at in reversed(range(len(fits))):
        fit, (later, named) = fits[at], best[at]
        gained = fit.is_alike and needy[at]
        options: list[Choice] = [(best[at], -2 * len(fits), None), *further]
        if fit.can_again:
            rank = -at - fit.is_opening * len(fits)
            options.append(((later + gained, named + 1), rank, at))
        found.append(max(options, key=_rank))
        if fit.can:
            new: Choice = ((later + gained + needy[at], named + 1), -at, at)
            further = [max([*further, new], key=_rank)]
    return found[::-1]


def _rank(choice: Choice) -> tuple[tuple[int, int], int]:
    return choice[:2]


def _with_casts(
    operations: list[str], given: list[str | None], last: str | None
) -> list[str | None]:
    """Put casts back in, each to who takes it."""
    found: list[str | None] = []
    taker = last
    for operation in reversed(operations):
        if operation != CAST:
            taker = given.pop()
        found.append(taker)
    return found[::-1]


def _stem(type_name: str) -> str:
    """Give what an operation's name has of a class's: ``relu`` of ReLU, ``pool`` of MaxPool2d."""
    name = type_name.lower().rstrip("123d")
    return name.removeprefix("adaptive")


def _give_tails(modules: list[str], direct: list[str | None], about: Surroundings) -> None:
    """Let the last part of a container end as the parts of the same class before it end."""
    tails: dict[tuple[str, str], list[str]] = {}
    for module, tail in _tails(modules, direct, about):
        container = module.rpartition(".")[0]
        key = (container, about.types.get(module, ""))
        names = [about.names[n] for n in tail]
        if all(f"{modules[n]}.".startswith(f"{module}.") for n in tail):
            tails.setdefault(key, names)
            continue
        wanted = tails.get(key)
        if wanted and names[: len(wanted)] == wanted:
            for n in tail[: len(wanted)]:
                modules[n] = module


def _end_last_call(modules: list[str], direct: list[str | None], about: Surroundings) -> None:
    """Let the last call of a module that is called in a row end as its calls before did."""
    gaps: list[tuple[str, str | None, range]] = []
    last: int | None = None
    for n, module in enumerate([*direct, None]):
        if module is not None or n == len(direct):
            if last is not None and n - last > 1:
                gaps.append((direct[last] or "", module, range(last + 1, n)))
            last = n
    longest: dict[str, list[str]] = {}
    for module, following, gap in gaps:
        if following == module:
            n_own = next((k for k, n in enumerate(gap) if modules[n] != module), len(gap))
            names = [about.names[n] for n in gap[:n_own]]
            longest[module] = max(longest.get(module, []), names, key=len)
    for module, following, gap in gaps:
        wanted = longest.get(module, [])
        if following != module and [about.names[n] for n in gap][: len(wanted)] == wanted:
            for n in gap[: len(wanted)]:
                modules[n] = module


def _tails(
    modules: list[str], direct: list[str | None], about: Surroundings
) -> list[tuple[str, list[int]]]:
    """List for each part of a container what follows its last parameter, up to the next one."""
    last: dict[str, int] = {}
    for n, module in enumerate(direct):
        part = _part_of_container(module, about.containers) if module else None
        if part is not None:
            last[part] = n
    found = []
    for part, n in last.items():
        tail = []
        at = n + 1
        while at < len(modules) and direct[at] is None:
            tail.append(at)
            at += 1
        found.append((part, tail))
    return found


def _part_of_container(module: str, containers: set[str]) -> str | None:
    """Give the outermost part of a container that `module` is or is in, None for none."""
    parts = module.split(".")
    for n in range(1, len(parts)):
        if ".".join(parts[:n]) in containers:
            return ".".join(parts[: n + 1])
    return None


def shared_prefix(one: str, other: str) -> str:
    """Give the innermost module that holds both."""
    common = []
    for a, b in zip(one.split("."), other.split("."), strict=False):
        if a != b:
            break
        common.append(a)
    return ".".join(common)
