"""What a walked graph says about each node, as plain values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from nbinspect import _torch
from nbinspect.autograd_graph.inference import Surroundings, infer_modules
from nbinspect.autograd_graph.naming import Names
from nbinspect.autograd_graph.records import AutogradNode, GraphModule, SavedTensor
from nbinspect.autograd_graph.walk import Walked, is_leaf
from nbinspect.blocks import Unavailable
from nbinspect.records import SourceLine
from nbinspect.tensors import class_name, describe, is_tensor, node_name, storages


class Origin(NamedTuple):
    """Where a node was made, by a watched forward."""

    op: str
    module: str
    line: SourceLine | None


NOWHERE = Origin("", "", None)


@dataclass(slots=True)
class Facts:
    """Plain facts about a graph.

    Attributes:
        nodes: as in the report.
        storage_bytes: the size of each storage that is saved for backward alone, by its number.
        by_node: the numbers of such storages, by node.
        parameter_bytes: storages of parameters and buffers that are saved.
        n_packed: saved values that a hook packed.
        watched: every operation of the graph was watched.
    """

    nodes: list[AutogradNode] = field(default_factory=list)
    storage_bytes: dict[int, int] = field(default_factory=dict)
    by_node: list[set[int]] = field(default_factory=list)
    parameter_bytes: int = 0
    n_packed: int = 0
    watched: bool = False


class _Storages:
    """Numbers storages, and tells those that are parameters' or buffers'."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._numbers: dict[Any, int] = {}
        self.parameters: dict[Any, str] = {}
        for owned in (*names.parameters.values(), names.buffers):
            for name, tensor in owned.items():
                for key, _ in storage_keys(tensor):
                    self.parameters.setdefault(key, name)

    def saved(self, slot: str, value: Any, hook: Any) -> SavedTensor:
        """Describe a saved value; what a hook packed is looked at from outside."""
        if hook is not None or not is_tensor(value):
            held = storage_keys(value) if is_tensor(value) else []
            size = sum(n for _, n in held) if held else None
            what = describe(value) if is_tensor(value) else class_name(type(value))
            return SavedTensor(slot, what, size, self._number(held), "PACKED")
        held = storage_keys(value)
        owner = next((self.parameters[key] for key, _ in held if key in self.parameters), "")
        size = sum(n for _, n in held) if held else None
        kind = "PARAMETER" if owner else "ACTIVATION"
        name = owner or self._names.tensor(value)
        return SavedTensor(slot, describe(value), size, self._number(held), kind, name)

    def _number(self, held: list[tuple[Any, int]]) -> int | None:
        key = tuple(sorted(key for key, _ in held))
        return self._numbers.setdefault(key, len(self._numbers)) if key else None


def storage_keys(tensor: Any) -> list[tuple[Any, int]]:
    """Give (key, bytes) of each storage behind a tensor, none where there are no bytes."""
    found = storages(tensor)
    return [] if isinstance(found, Unavailable) else [(one.key, one.size_bytes) for one in found]


def gather(
    walked: Walked,
    kept: Sequence[Sequence[tuple[str, Any, Any]]],
    names: Names,
    origins: Mapping[int, Origin],
) -> Facts:
    """Describe every node; call it inside `tensors.looking`.

    Args:
        walked: the nodes.
        kept: what each has saved, see `_torch.raw_saved`.
        names: what the user calls things.
        origins: where nodes were made, by their number.

    Cost: about 10 µs a node and a norm of each gradient and of each saved tensor that there is (a
        read for each device and dtype).
    """
    facts = Facts()
    stores = _Storages(names)
    norms = gradient_norms([_variable(node) for node in walked.nodes])
    made = [_origin(node, origins) for node in walked.nodes]
    modules = _modules(walked, names, made)
    parameters: dict[int, int] = {}
    spoilt = _with_nan(kept)
    for n, node in enumerate(walked.nodes):
        saved = tuple(stores.saved(*each) for each in kept[n])
        sized = [(one, one.storage, one.size_bytes or 0) for one in saved]
        own = {at: size for one, at, size in sized if at is not None and one.kind != "PARAMETER"}
        parameters |= {at: size for one, at, size in sized if at is not None and at not in own}
        facts.storage_bytes |= own
        facts.by_node.append(set(own))
        facts.n_packed += sum(one.kind == "PACKED" for one in saved)
        described = _node(n, node, names, norms[n])
        facts.nodes.append(
            dataclasses.replace(
                described,
                module=modules[n],
                op=(made[n] or NOWHERE).op,
                line=(made[n] or NOWHERE).line,
                saved=saved,
                saved_bytes=sum(own.values()),
                problem=described.problem or spoilt.get(n, ""),
            )
        )
    facts.parameter_bytes = sum(parameters.values())
    inner = [one for node, one in zip(walked.nodes, made, strict=True) if not is_leaf(node)]
    facts.watched = bool(inner) and all(one is not None for one in inner)
    return facts


def _variable(node: Any) -> Any:
    return node.variable if is_leaf(node) else None


def _origin(node: Any, origins: Mapping[int, Origin]) -> Origin | None:
    number = _torch.sequence_number(node)
    return origins.get(number) if number is not None else None


def _modules(walked: Walked, names: Names, made: Sequence[Origin | None]) -> list[str]:
    """Name each node's module: as watched, else inferred; a leaf's is its owner."""
    owners = {
        n: names.owner_modules[id(node.variable)]
        for n, node in enumerate(walked.nodes)
        if is_leaf(node) and id(node.variable) in names.owner_modules
    }
    about = Surroundings(
        [node_name(node) for node in walked.nodes],
        walked.producers(),
        owners,
        names.types,
        names.containers,
        names.known,
    )
    inferred = infer_modules(about)
    return [
        origin.module if origin is not None else guess
        for origin, guess in zip(made, inferred, strict=True)
    ]


def _node(n: int, node: Any, names: Names, norm: float | None) -> AutogradNode:
    """Describe a node by itself."""
    outputs = _torch.node_outputs(node)
    shape: tuple[int, ...] | None = outputs[0].shape if outputs else None
    dtype, device = (outputs[0].dtype, outputs[0].device) if outputs else ("", "")
    leaf = ""
    if is_leaf(node):
        variable = node.variable
        shape = None if variable.is_nested else tuple(variable.shape)
        dtype, device = str(variable.dtype).removeprefix("torch."), str(variable.device)
        leaf = names.tensor(variable) or describe(variable)
    return AutogradNode(
        key=n,
        name=node_name(node),
        shape=shape,
        dtype=dtype,
        device=device,
        leaf=leaf,
        is_parameter=bool(leaf) and id(node.variable) in names.owners,
        variables=tuple(names.nodes.get(id(node), ())),
        grad_norm=norm,
        problem=_bad(norm),
    )


def _bad(norm: float | None) -> str:
    if norm is None or abs(norm) < float("inf"):
        return ""
    return "NaN in the gradient" if norm != norm else "Inf in the gradient"  # noqa: PLR0124 - NaN


def gradient_norms(leaves: Sequence[Any]) -> list[float | None]:
    """Give the 2-norm of each leaf's gradient, None where there is none; one read per device."""
    grads: dict[tuple[torch.device, torch.dtype], list[tuple[int, Any]]] = {}
    found: list[float | None] = [None] * len(leaves)
    for n, leaf in enumerate(leaves):
        grad = leaf.grad if leaf is not None and leaf.is_leaf else None
        if grad is not None:
            grads.setdefault((grad.device, grad.dtype), []).append((n, grad))
    for (device, _), some in grads.items():
        if device.type == "meta":
            continue
        try:
            norms = _torch.norms([grad for _, grad in some])
            for (n, _), norm in zip(some, norms, strict=True):
                found[n] = norm
        except Exception:  # a dtype without norms: its gradients are left unknown
            continue
    return found


def _with_nan(kept: Sequence[Sequence[tuple[str, Any, Any]]]) -> dict[int, str]:
    """Say of each node whose saved tensors have NaN in them which one it is.

    An Inf is no such sign: masks are made of it. Where the forward made a NaN, who takes it saves it.
    """
    groups: dict[
        tuple[torch.device, torch.dtype], dict[Any, tuple[Any, list[tuple[int, str]]]]
    ] = {}
    for n, some in enumerate(kept):
        for slot, value, hook in some:
            if hook is None and is_tensor(value) and _has_numbers(value):
                place = (value.data_ptr(), value.shape, value.stride())  # saved by several
                group = groups.setdefault((value.device, value.dtype), {})
                group.setdefault(place, (value, []))[1].append((n, slot))
    found: dict[int, str] = {}
    for group in groups.values():
        try:
            norms = _torch.norms([value for value, _ in group.values()])
        except Exception:  # a kind without norms: its values are left unknown
            continue
        for norm, (_, takers) in zip(norms, group.values(), strict=True):
            if math.isnan(norm):
                for n, slot in takers:
                    found.setdefault(n, f"NaN in what it saves (`{slot}`)")
    return found


def _has_numbers(value: Any) -> bool:
    is_plain = value.layout is torch.strided and not (value.is_meta or value.is_nested)
    return is_plain and value.is_floating_point() and value.numel() > 0


def module_rows(
    facts: Facts, names: Mapping[str, str], containers: set[str]
) -> tuple[GraphModule, ...]:
    """Sum what each module has a part in, its children's with it, in the order of the forward."""
    first: dict[str, int] = {}
    counts: dict[str, list[int]] = {}
    stores: dict[str, set[int]] = {}
    norms: dict[str, list[float]] = {}
    for node, stored in zip(facts.nodes, facts.by_node, strict=True):
        for name in ancestors(node.module, names):
            first.setdefault(name, node.key)
            row = counts.setdefault(name, [0, 0])
            row[0] += 1
            row[1] += node.is_parameter
            stores.setdefault(name, set()).update(stored)
            if node.grad_norm is not None and node.is_parameter:
                norms.setdefault(name, []).append(node.grad_norm)
    return tuple(
        GraphModule(
            name,
            names[name],
            counts[name][0],
            sum(facts.storage_bytes[number] for number in stores[name]),
            sum(norm**2 for norm in norms[name]) ** 0.5 if name in norms else None,
            counts[name][1],
            name in containers,
        )
        for name in sorted(first, key=lambda one: (first[one], one.count(".")))
    )


def ancestors(module: str, names: Mapping[str, str]) -> list[str]:
    """Give a module and all that it is in, the outermost first, as far as they are known."""
    parts = module.split(".")
    paths = (".".join(parts[: n + 1]) for n in range(len(parts)))
    return [path for path in paths if path in names]
