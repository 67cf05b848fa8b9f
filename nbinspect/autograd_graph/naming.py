"""What the user calls the leaves of a graph, its modules and what came out of its nodes."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import torch
from torch import nn

from nbinspect import _torch, notebook
from nbinspect.autograd_graph.operations import Operations, operations_of
from nbinspect.heapgraph.objects import own_dict
from nbinspect.tensors import class_name, is_tensor, storage_key

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
MOST_ITEMS = 64  # of the user's containers that are looked into for names


@dataclass(slots=True)
class Names:
    """Names by the id of what they name; ids hold only while their objects live.

    Attributes:
        owners: for each parameter or buffer its fqns; several for tied weights.
        owner_modules: for each parameter the modules that own it, in the order of `owners`.
        modules: fqn by the id of a module.
        types: class name by module fqn.
        containers: fqns of modules that only hold others.
        known: what modules of torch's own can make, by fqn.
        parameters: for each outermost module its parameters by fqn.
        buffers: the buffers of all of them by fqn.
        trained: for each optimizer the ids of what it trains.
        loose: what these optimizers train and no module has: the user's name, "" for none, and it.
        nameless: outermost modules that the user has no name for, and no module owns.
        variables: for each tensor the user's names.
        nodes: for each autograd node the names of tensors that it made.
        kinds: for each variable that a node made, that node's name and its own shape.
        by_storage: the user's names of tensors, by what `storage_key` gives for them.
    """

    owners: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    owner_modules: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    modules: dict[int, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    containers: set[str] = field(default_factory=set)
    known: dict[str, Operations] = field(default_factory=dict)
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    buffers: dict[str, Any] = field(default_factory=dict)
    trained: list[set[int]] = field(default_factory=list)
    loose: list[tuple[str, Any]] = field(default_factory=list)
    nameless: set[str] = field(default_factory=set)
    variables: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    nodes: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    kinds: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    by_storage: dict[Any, list[str]] = field(default_factory=lambda: defaultdict(list))

    def close(self) -> None:
        """Let go of parameters and buffers."""
        self.loose.clear()
        self.parameters.clear()
        self.buffers.clear()

    def tensor(self, tensor: Any) -> str:
        """Name a tensor: its fqn, else a variable, "" for neither."""
        own = self.owners.get(id(tensor)) or self.variables.get(id(tensor))
        return own[0] if own else ""


def names_of(leaves: Iterable[Any], frozen: Iterable[Any] = ()) -> Names:
    """Name modules that own some tensors of a graph, and every tensor that has a variable.

    Args:
        leaves: where gradients end, or would.
        frozen: what else may be a module's; one that looks into the bytes of such does as well.

    Cost: one pass over the objects that Python's collector tracks, some 40 ms in a notebook.
    Blind to: modules that are only in the user's own containers of containers; they go by the name
    of their class.
    Source: ``torch.nn.Module.named_modules``, the notebook's names, running frames.
    """
    names = Names()
    wanted, keys = set[int](), set(map(storage_key, frozen))
    for leaf in leaves:
        wanted.add(id(leaf))
        keys.add(storage_key(leaf) if leaf.requires_grad and leaf.is_leaf else None)
    keys.discard(None)
    modules, optimizers = _living(nn.Module, torch.optim.Optimizer)
    training = [list(_trained(one)) for one in optimizers]
    names.trained = [set(map(id, some)) for some in training]
    wanted.update(*(own for own in names.trained if not own.isdisjoint(wanted)))
    known = _user_values()
    parents = _parents(modules)
    used = [
        module
        for module in modules
        # By storage: a leaf may look into a parameter's bytes without being it.
        if any(id(t) in wanted or storage_key(t) in keys for t in _own_tensors(module))
    ]
    called: dict[int, str] = {}
    for label, value in known:
        called.setdefault(id(value), label)
    held: dict[int, str] | None = None
    for top in _outermost(used, parents, called):
        if id(top) not in called and held is None:  # those with a name have come first
            held = _held(names, modules)
        label = called.get(id(top)) or (held or {}).get(id(top)) or class_name(type(top))
        with suppress(Exception):  # a module whose own code raises has no names to give
            prefix = _name_module(names, top, label)
            if id(top) not in called:
                names.nameless.add(prefix)
    _name_variables(names, [*known, *_attributes(names, modules)])
    names.loose = [
        (names.tensor(one), one)
        for some in training
        if not wanted.isdisjoint(map(id, some))
        for one in some
        if id(one) not in names.owners
    ]
    return names


def _held(names: Names, modules: list[Any]) -> dict[int, str]:
    """Name modules that are in a plain list or dictionary of a module, which does not own them."""
    found: dict[int, str] = {}
    for module in modules:
        label = names.modules.get(id(module))
        for key, value in list((own_dict(module) or {}).items()) if label else ():
            if type(value) in (list, tuple, dict) and not key.startswith("_"):
                inner = _parts(f"{label}.{key}", value)
                found |= {id(one): name for name, one in inner if not is_tensor(one)}
    return found


def _attributes(names: Names, modules: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield tensors that modules hold as plain attributes, a recurrent state for one."""
    for module in modules:
        label = names.modules.get(id(module))
        for key, value in list((own_dict(module) or {}).items()) if label else ():
            if is_tensor(value):
                yield f"{label}.{key}", value
            elif type(value) in (list, tuple, dict) and not key.startswith("_"):
                yield from _parts(f"{label}.{key}", value)
    for label, buffer in names.buffers.items():
        if buffer.grad_fn is not None:
            yield label, buffer


def _living(*classes: type) -> list[list[Any]]:
    """List the living instances of each of some classes, by one pass over the heap."""
    objects = gc.get_objects()
    kinds = list(map(type, objects))
    distinct = dict(zip(map(id, kinds), kinds, strict=True))
    found = []
    for wanted in classes:
        keys = {key for key, kind in distinct.items() if issubclass(kind, wanted)}
        found.append(list(compress(objects, map(keys.__contains__, map(id, kinds)))))
    return found


def _trained(optimizer: Any) -> Iterator[Any]:
    """Yield each parameter of an optimizer; one that is half made has none."""
    groups = (own_dict(optimizer) or {}).get("param_groups", ())
    for group in groups if isinstance(groups, list) else ():
        yield from group.get("params", ())


def _own_tensors(module: Any) -> Iterator[Any]:
    own = own_dict(module) or {}
    for place in ("_parameters", "_buffers"):
        found = own.get(place)
        if isinstance(found, dict):
            yield from (one for one in list(found.values()) if one is not None)


def _parents(modules: list[Any]) -> dict[int, list[Any]]:
    parents: dict[int, list[Any]] = defaultdict(list)
    for module in modules:
        children = (own_dict(module) or {}).get("_modules")
        if isinstance(children, dict):
            for child in list(children.values()):
                parents[id(child)].append(module)
    return parents


def _outermost(used: list[Any], parents: dict[int, list[Any]], called: dict[int, str]) -> list[Any]:
    """Go up from the owners to the modules that nothing holds; those with a name come first."""
    tops: dict[int, Any] = {}
    seen: set[int] = set()
    todo = list(used)
    while todo:
        module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        above = parents.get(id(module), [])
        todo += above
        if not above:
            tops[id(module)] = module
    return sorted(tops.values(), key=lambda one: id(one) not in called)


def _name_module(names: Names, top: Any, prefix: str) -> str:
    """Name all parts of an outermost module, and give the name that they begin with."""
    while prefix in names.parameters:
        prefix += "'"
    own: dict[str, Any] = {}
    for path, module in list(top.named_modules()):
        label = f"{prefix}.{path}" if path else prefix
        names.modules.setdefault(id(module), label)
        names.types[label] = class_name(type(module))
        known = operations_of(module)
        if known is not None:
            names.known[label] = known
        if type(module).forward in {kind.forward for kind in CONTAINERS}:
            names.containers.add(label)
        for place in ("_parameters", "_buffers"):
            for key, tensor in list((own_dict(module) or {}).get(place, {}).items()):
                if tensor is not None:
                    names.owners[id(tensor)].append(f"{label}.{key}")
                    names.owner_modules[id(tensor)].append(label)
                    held = own if place == "_parameters" else names.buffers
                    held[f"{label}.{key}"] = tensor
    names.parameters[prefix] = own
    return prefix


def _user_values() -> list[tuple[str, Any]]:
    """List what the user has names for: variables, those of running calls, and what they hold."""
    spaces = [notebook.user_namespace()]
    frame = notebook.user_frame(_here())
    while frame is not None:
        spaces.append(notebook.frame_locals(frame))
        frame = notebook.user_frame(frame.f_back)
    found: list[tuple[str, Any]] = []
    for space in spaces:
        found += [(name, value) for name, value in list(space.items()) if not name.startswith("_")]
    inner: list[tuple[str, Any]] = []
    for name, value in found:
        inner += _parts(name, value)
    return [*found, *inner]


def _here() -> Any:
    import sys

    return sys._getframe(1)


def _parts(name: str, value: Any) -> list[tuple[str, Any]]:
    """Name the tensors and modules right inside a container or an instance of the user's."""
    kind = type(value)
    if kind in (list, tuple):
        pairs = [(f"{name}[{n}]", one) for n, one in enumerate(value[:MOST_ITEMS])]
    elif kind is dict:
        items = list(value.items())[:MOST_ITEMS]
        pairs = [(f"{name}[{key!r}]", one) for key, one in items if type(key) in (str, int)]
    elif issubclass(kind, nn.Module | type) or is_tensor(value):
        return []
    else:
        own = own_dict(value)
        if own is None or kind.__module__.partition(".")[0] in {"builtins", "IPython", "torch"}:
            return []
        pairs = [(f"{name}.{key}", one) for key, one in list(own.items())[:MOST_ITEMS]]
    return [(n, one) for n, one in pairs if is_tensor(one) or issubclass(type(one), nn.Module)]


def _name_variables(names: Names, known: list[tuple[str, Any]]) -> None:
    for label, value in known:
        if not is_tensor(value):
            continue
        if label not in names.variables[id(value)]:
            names.variables[id(value)].append(label)
            names.by_storage[storage_key(value)].append(label)
        with suppress(Exception):  # a tensor of a broken type has no node to name
            node = made_by(value)
            if node is not None:
                names.kinds[label] = node.name(), tuple(value.shape)
            if node is not None and label not in names.nodes[id(node)]:
                names.nodes[id(node)].append(label)


def made_by(tensor: Any) -> Any:
    """Give a tensor's autograd node without making torch rebuild it; None where that would."""
    if _torch.is_view(tensor) and _torch.version(tensor):
        return None
    return tensor.grad_fn
