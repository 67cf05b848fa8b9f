"""Which module made a node, where the forward was not watched: read off the parameters' names.

A node that takes a module's parameter is that module's. What lies between two such nodes belongs to
the innermost module that holds both; a container that runs nothing of its own (Sequential,
ModuleList) passes it to the part that ran last. The last part of a container is given the same tail
as its equals, since what follows it is not in the container.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

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
    """

    names: Sequence[str]
    producers: Sequence[Sequence[int]]
    owners: dict[int, list[str]]
    types: dict[str, str]
    containers: set[str] = field(default_factory=set)
    _parts: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def parts(self, container: str) -> list[str]:
        """Give what is right in a container, in the order in which it runs."""
        if not self._parts:
            for name in self.types:
                self._parts[name.rpartition(".")[0]].append(name)
        return self._parts[container]


def infer_modules(about: Surroundings) -> list[str]:
    """Give a module's fqn for each node, "" where there is none.

    Cost: linear.
    Blind to: modules without parameters, and operations before a block's first parameter.
    """
    found = _direct(about)
    known = [n for n, module in enumerate(found) if module is not None]
    if not known:
        return [""] * len(about.names)
    direct = list(found)
    before: int | None = None
    after = iter(known)
    upcoming = next(after, None)
    for n, module in enumerate(direct):
        if module is not None:
            before, upcoming = n, next(after, None)
            continue
        last = direct[before] if before is not None else None
        following = direct[upcoming] if upcoming is not None else None
        found[n] = _between(about, n, (last, following), found[n - 1] if n else None)
    modules = [module or "" for module in found]
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


def _between(
    about: Surroundings, node: int, around: tuple[str | None, str | None], previous: str | None
) -> str | None:
    """Give the module of a node that is between two that take parameters."""
    last, following = around
    if last is None or following is None:  # before and after all modules
        return None
    common = shared_prefix(last, following)
    while common in about.containers and common != last:
        part = f"{common}.{last[len(common) + 1 :].partition('.')[0]}"
        skipped = _skipped(about, common, part, following)
        if skipped:
            return _one_of(skipped, about, node, previous)
        common = part
        if common == last:
            break
    return common or None


def _one_of(skipped: list[str], about: Surroundings, node: int, previous: str | None) -> str:
    """Choose among parts without parameters: by the operation's name, else in their order."""
    if previous in skipped:
        at = skipped.index(previous)
        is_over = _stem(about.types[previous]) in about.names[node - 1].lower()
        skipped = skipped[at + is_over :] or [previous]
    name = about.names[node].lower()
    return next((one for one in skipped if _stem(about.types[one]) in name), skipped[0])


def _skipped(about: Surroundings, container: str, part: str, following: str) -> list[str]:
    """Give the parts of a container after one, up to the next that has parameters."""
    parts = about.parts(container)
    if part not in parts:
        return []
    rest = parts[parts.index(part) + 1 :]
    if not following.startswith(f"{container}."):
        return rest
    after = f"{container}.{following[len(container) + 1 :].partition('.')[0]}"
    return rest[: rest.index(after)] if after in rest else []


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
            names = [about.names[n] for n in gap]
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
