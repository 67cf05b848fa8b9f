"""Names of equal layers as one: the twelve blocks of a model read better in one row than in twelve."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

_INDEX = re.compile(r"\.\d+(?=\.)")
_LAST_INDEX = re.compile(r"\.\d+$")


def any_layer(name: str) -> str:
    """Leave the numbers of layers open: ``net.blocks.3.up.weight`` is ``net.blocks.*.up.weight``.

    Names may stand inside others: ``optimizer.state[net.blocks.3.up.weight]['exp_avg']``.
    """
    return _INDEX.sub(".*", name)


def any_module(name: str, types: Mapping[str, str]) -> str:
    """Leave the numbers of layers open in a module's name, its own where its neighbours equal it.

    Args:
        name: a module's fully qualified name, e.g. ``net.blocks.3``.
        types: the types of all modules, by name; the parts of a flat container, of types of
            different kinds, stay apart.
    """
    open_name = any_layer(name)
    container, _, last = name.rpartition(".")
    beside = [one for one in types if one.rpartition(".")[0] == container] if last.isdigit() else []
    if beside and all(types[one] == types.get(name) for one in beside):
        return _LAST_INDEX.sub(".*", open_name)
    return open_name


def times(type_name: str, number: int) -> str:
    """Say how many there are: ``Linear x6``."""
    return f"{type_name} x{number}" if number > 1 else type_name


def whole_modules(names: Iterable[str], among: Iterable[str]) -> list[str]:
    """Write ``model.encoder.*`` where all names of a module are meant.

    Args:
        names: those that are meant.
        among: all that there are.
    """
    names = list(names)
    inside = Counter(prefix for name in among for prefix in _prefixes(name))
    meant = Counter(prefix for name in set(names) for prefix in _prefixes(name))
    groups = []
    for name in names:
        whole = (p for p in _prefixes(name) if meant[p] == inside[p] and inside[p] > 1)
        prefix = next(whole, None)
        groups.append(f"{prefix}.*" if prefix else name)
    return list(dict.fromkeys(groups))


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]
