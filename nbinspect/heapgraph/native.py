"""The references that torch holds from C++, where ``gc.get_referrers`` sees nothing."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from nbinspect import _torch
from nbinspect.tensors import is_node, is_tensor, new, storage_key

# Reading `next_functions` gives a node a Python wrapper for life, and wrapped nodes are freed
# recursively: with an 8 MiB stack 43,000 of them in a chain crash the process. So the number of
# wrapped nodes is capped, well below, in proportion to the stack.
NODES_PER_STACK_BYTE = 20_000 / (8 << 20)
MOST_NODES = 20_000
UNPACK = "unpack hook"
WRAPPED = "the wrapped tensor"
BYTES, SAME_BYTES = "bytes", "the same bytes"
HOOKS, TENSOR_HOOKS = "hooks", "a tensor's hooks"
TO_NODES = frozenset({"next", "grad_fn"})
TO_PYTHON = frozenset({"", "array", UNPACK, HOOKS, TENSOR_HOOKS, BYTES})


class Reference(NamedTuple):
    """One reference: `parent` and `child` are ids, `slot` is "" for one that Python sees.

    A tensor made over an array, by ``torch.from_numpy`` or the like, holds it for its `BYTES`; others
    on its storage have the `SAME_BYTES`. A node's `HOOKS` are its own; `TENSOR_HOOKS` are those of the outputs of one that it leads to.

    Attributes:
        counted: it adds one to a tensor's C++ use count.
    """

    parent: int
    child: int
    slot: str
    counted: bool

    @property
    def is_pythons(self) -> bool:
        """Say whether it adds one to a Python reference count."""
        if self.counted:
            return False
        return self.slot in TO_PYTHON or self.slot.startswith("saved ")  # packed by a hook


@dataclass(slots=True)
class NativeWalk:
    """Tensors and nodes by id, the C++ references between them, and whether that is all.

    Attributes:
        links: C++ references to other Python objects: hooks for saved tensors, what they packed.
    """

    found: dict[int, Any] = field(default_factory=dict)
    links: list[tuple[Reference, Any]] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    complete: bool = True


def node_cap() -> int:
    """Give how many autograd nodes may be wrapped without danger to this process."""
    try:
        import resource
    except ImportError:  # Windows gives the main thread 1 MiB
        return int((1 << 20) * NODES_PER_STACK_BYTE)
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    if stack in (resource.RLIM_INFINITY, -1) or stack > sys.maxsize:
        return MOST_NODES
    return min(MOST_NODES, int(stack * NODES_PER_STACK_BYTE))


def owned(value: Any) -> Iterable[tuple[str, Any, bool]]:
    """Give (slot, object, counted) for each that a tensor, node or script module holds from C++."""
    if is_tensor(value):
        return _owned_by_tensor(value)
    return _owned_by_node(value) if is_node(value) else _owned_by_script(value)


def _owned_by_tensor(tensor: Any) -> Iterator[tuple[str, Any, bool]]:
    if (node := tensor.grad_fn) is not None:
        yield "grad_fn", node, False
    if (base := _torch.base(tensor)) is not None:
        yield "base", base, True
    # Asking a non-leaf for its grad warns, unless it retains one.
    if (tensor.is_leaf or tensor.retains_grad) and (grad := _torch.grad(tensor)) is not None:
        yield "grad", grad, True
    if (inner := _torch.wrapped_tensor(tensor)) is not None:
        yield WRAPPED, inner, True


def _owned_by_node(node: Any) -> Iterable[tuple[str, Any, bool]]:
    found = [("next", child, False) for child, _ in node.next_functions if child is not None]
    for slot, data, unpack in _torch.raw_saved(node):
        # What a hook packed is a Python reference.
        found.append((_saved(slot), data, unpack is None))
        if unpack is not None:
            found.append((UNPACK, unpack, False))
    if type(node).__name__ == "AccumulateGrad":
        found.append(("variable", node.variable, True))
    return found


@lru_cache(maxsize=256)
def _saved(slot: str) -> str:
    return f"saved {slot}"  # one and the same object for thousands of nodes


def _owned_by_script(module: Any) -> Iterator[tuple[str, Any, bool]]:
    yield from ((name, tensor, True) for name, tensor in _torch.script_tensors(module))


def walk(seeds: list[Any], cap: int) -> NativeWalk:
    """Follow C++ references from tensors, autograd nodes and TorchScript's modules.

    Args:
        seeds: where to start: all of these that Python's collector tracks.
        cap: how many autograd nodes to look at; `node_cap` says what is safe.

    Cost: about 10 µs a node; wraps each node for its life; runs no hook, so a checkpointed
    forward does not run again.
    Blind to: hooks of nodes (see `hooks_of_nodes`), DDP's buckets, autocast's cache. One node with more
    inputs than the cap is wrapped whole.
    Source: ``Node.next_functions``, ``_raw_saved_*``, ``Tensor.grad_fn``, ``._base``, ``.grad``.
    """
    # By address, since the collector's own order changes between two walks.
    tensors = sorted(filter(is_tensor, seeds), key=id)
    nodes = sorted(filter(is_node, seeds), key=id)
    scripts = [one for one in seeds if not (is_tensor(one) or is_node(one))]
    result = NativeWalk({id(one): one for one in tensors})
    for one in scripts:
        _visit(
            one, _owned_by_script, result, tensors, set()
        )  # its tensors may have no Python side until now
    wrapped = set(map(id, nodes))
    todo, n_nodes, n_wrapped = deque(tensors), 0, len(nodes)
    seen = set[int]()
    while todo or nodes:
        if not todo:  # last: which nodes have wrappers depends on the walks before this one
            todo.extend(nodes)
            nodes = []
        value = todo.popleft()
        key = id(value)
        if key in seen:
            continue
        seen.add(key)
        is_one = is_tensor(value)
        n_nodes += not is_one
        # Two limits: on the nodes looked at, so that two walks in a row stop at the same place,
        # and on wrappers, so that many walks in a row do not add up to a crash.
        if n_nodes > cap or n_wrapped > cap * 3 // 2:
            result.complete = False
            break
        held = _owned_by_tensor if is_one else _owned_by_node
        n_wrapped += _visit(value, held, result, todo, wrapped)
    return result


def tensors_over(found: dict[int, Any], arrays: dict[int, list[int]]) -> list[Reference]:
    """Find the tensors that were made over some arrays or buffers, and so hold them.

    Args:
        found: tensors and nodes by id, as `walk` finds them.
        arrays: ids by address, of those that something holds besides what is known.
    """
    references, met = list[Reference](), set[int]()
    for key, tensor in found.items():
        place = storage_key(tensor) if is_tensor(tensor) else None
        if place is None or place[0].type != "cpu" or place[1] not in arrays:
            continue
        storage = _torch.handle(tensor.untyped_storage())
        slot = SAME_BYTES if storage in met else BYTES
        met.add(storage)
        references += [Reference(key, array, slot, False) for array in arrays[place[1]]]
    return references


def hooks_of_nodes(
    found: dict[int, Any], wanted: set[int], ownerless: set[int]
) -> tuple[list[Reference], int]:
    """Find the autograd nodes that hold some dictionaries of hooks.

    A hook on a tensor moves to the node that made it, and stays there when the tensor goes. Which
    node that is, torch does not tell: then all graphs are named, by the nodes that they begin at.

    Args:
        found: tensors and nodes by id, as `walk` finds them.
        wanted: ids of dictionaries that something holds besides what is known.
        ownerless: those of them of which no holder is known.

    Returns:
        The references, and in how many graphs the last of them may be; they are sure if in one.
    """
    nodes = {key: one for key, one in found.items() if is_node(one)}
    references = [
        Reference(id(node), id(hooks), HOOKS, False)
        for node, hooks in _torch.node_hooks(nodes.values())
        if id(hooks) in wanted
    ]
    left = ownerless.difference(one.child for one in references)
    inner = {id(child) for one in nodes.values() for child, _ in one.next_functions}
    first = [key for key, one in nodes.items() if key not in inner and one.next_functions]
    references += [Reference(node, hooks, TENSOR_HOOKS, False) for hooks in left for node in first]
    return references, len(first) if left else 1


def _visit(
    value: Any,
    held: Callable[[Any], Iterable[tuple[str, Any, bool]]],
    result: NativeWalk,
    todo: deque[Any] | list[Any],
    wrapped: set[int],
) -> int:
    """Note what `value` holds, queue it, and give how many nodes that wrapped."""
    found, parent, n_wrapped = result.found, id(value), 0
    found[parent] = value
    try:
        for slot, child, counted in held(value):
            key = id(child)
            reference = new(Reference, (parent, key, slot, counted))
            is_new = key not in found
            if slot in TO_NODES:
                if key not in wrapped:
                    wrapped.add(key)
                    n_wrapped += 1
            elif is_new and not is_tensor(child):
                result.links.append((reference, child))
                continue
            elif is_new:
                found[key] = child
            result.references.append(reference)
            if is_new:
                todo.append(child)
    except Exception:  # a tensor of a broken type must not hide all others
        result.complete = False
    return n_wrapped
