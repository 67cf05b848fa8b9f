"""Names of equal layers as one: the twelve blocks of a model read better in one row than in twelve."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
