"""Why is this alive? the search, its proof and its mend, put together."""

from __future__ import annotations

import dataclasses
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from nbinspect import _torch, cell_history, notebook
from nbinspect.heapgraph.graph import collector_paused
from nbinspect.heapgraph.labels import short_name
from nbinspect.heapgraph.native import Reference, node_cap, walk
from nbinspect.heapgraph.objects import isinstance_of
from nbinspect.heapgraph.roots import LIBRARY_COST, Root
from nbinspect.referrers.backward import Backward, RootHit
from nbinspect.referrers.chains import Narrator, Place
from nbinspect.referrers.garbage import collector_frees, freed_with, goes_with
from nbinspect.referrers.mends import LONGEST_CODE, OTHERS, Way, break_cycle, mend
from nbinspect.referrers.origins import origin_of, saved_by
from nbinspect.referrers.records import Chain, Link, ReferenceReport
from nbinspect.referrers.spelling import as_code
from nbinspect.render.format import bytes_text
from nbinspect.tensors import (
    class_name,
    describe,
    device_of,
    is_node,
    is_tensor,
    looking,
    native_holders,
    parts,
    storage_bytes,
)

IMMORTAL = (type(None), bool, type(Ellipsis), type(NotImplemented))
ONE_AT_A_TIME = threading.RLock()  # two searches would find each other's lists
LARGEST_COUNT = 900_000_000  # Python gives more to what it never frees
EMPTY = (tuple, str, bytes, frozenset)
LONGEST_INTERNED = 4096
MOST_CHAINS = 12
MOST_BELOW, MOST_BELOW_ONE = 50_000, 2_000  # objects looked at to say what would go
MOST_BELOW_WAY = 20_000  # to say whether the object would
MOST_WAYS = 8
WEIGHING_S = 0.15
COLLECTABLE, UNCOLLECTABLE, HELD = "collectable", "through C++", "held from outside"
LOOSE = "held out of sight"


def refchain(
    obj: object,
    *,
    all: bool = False,  # noqa: A002 - the option is --all
    name: str = "it",
    budget_s: float = 5.0,
) -> ReferenceReport:
    """Answer who keeps an object alive: chains from your names down to it, and how to let go.

    Args:
        obj: anything; for a ``torch.UntypedStorage``, whoever holds a tensor over it.
        all: find every root, not only the nearest.
        name: what the answer calls the object.
        budget_s: stop searching after so many seconds, and say so.

    Returns:
        A record of plain values; it holds nothing of yours.

    Cost: a pass over Python's heap for each link of the chain: 36 ms at a million objects. Runs none
    of your code, collects nothing, does not synchronise a device.
    Blind to: holders that exist in C++ alone (DLPack, TorchScript, forward AD, a DDP reducer); they
    are counted and said. Values of a running expression that have no name yet.
    Source: ``gc.get_referrers``, ``Node.next_functions`` and its raw saved tensors,
    ``Tensor._use_count``, ``sys._current_frames``.
    """
    start = time.perf_counter()
    box = [obj]
    del obj
    if reason := _shared_by_all(box[0]):
        return _nothing_to_say(box[0], name, reason, time.perf_counter() - start)
    with ONE_AT_A_TIME, collector_paused(), looking():
        cell_history.look_now()
        size, origin = _size(box[0]), _origin(name, box[0])
        what = _What(name, _description(box[0]), size, device_of(box[0]), origin)
        search = Backward(
            _targets(box), every_root=all, budget_s=budget_s, is_known=_is_called(name)
        )
        box.clear()
        try:
            search.search()
            return _report(search, what, start)
        finally:
            search.close()


class _What(NamedTuple):
    """What was asked about, in words."""

    name: str
    description: str
    size_bytes: int | None
    device: str
    origin: str


def _shared_by_all(value: object) -> str:
    """Say why a value has no identity of its own, "" if it has one."""
    kind = type(value)  # `isinstance` would ask the object for its `__class__`
    if _is_one_of(kind, IMMORTAL) or (_is_one_of(kind, EMPTY) and value == kind()):
        return f"{value!r} exists once, for as long as Python runs"
    if type(value) is int and -5 <= value <= 256:
        return f"the small number {value} exists once, for as long as Python runs"
    if type(value) is str and _is_interned(value):
        return "this string is interned: all code that spells it shares it"
    if sys.getrefcount(value) > LARGEST_COUNT:
        return f"this {class_name(kind)} exists once, for as long as Python runs"
    return ""


def _is_one_of(kind: type, kinds: tuple[type, ...]) -> bool:
    """Like ``in``, which would ask a metaclass of the user's for equality."""
    return any(kind is one for one in kinds)


def _is_interned(text: str) -> bool:
    """Say whether a string is the one that all code shares, without making it so."""
    if len(text) > LONGEST_INTERNED:
        return False
    copy = "".join((text[:1], text[1:]))
    return copy is text or sys.intern(copy) is text


def _nothing_to_say(value: object, name: str, reason: str, duration_s: float) -> ReferenceReport:
    kind = class_name(type(value))
    return ReferenceReport(
        name, kind, (), 0, 0, True, reason, False, False, "", "", None, (), duration_s
    )


def _is_called(name: str) -> Callable[[Backward, Reference], bool]:
    """Make the rule for what the user knows already: the object under the very name asked for."""

    def is_known(search: Backward, reference: Reference) -> bool:
        chains = Narrator(search).from_root(reference)
        return all(_is_spelled(chain, name) for chain in chains)

    return is_known


def _is_spelled(chain: Chain, name: str) -> bool:
    """Say whether a chain is what was typed: a name alone, ``net.0`` as code has it."""
    text = str(chain)
    return text == name or (len(chain.links) == 1 and as_code(text) == name)


def _as_typed(chain: Chain, name: str) -> Chain:
    if not _is_spelled(chain, name) or str(chain) == name:
        return chain
    return Chain(name, (dataclasses.replace(chain.links[0], label=name),), chain.steps)


def _targets(box: list[Any]) -> list[Any]:
    """Give the object, or all that looks into a storage."""
    if not isinstance_of(box[0], torch.UntypedStorage):
        return [box[0]]  # a list of its own, since the search empties it
    handle = _torch.handle(box[0])
    found = walk(native_holders(gc.get_objects()), node_cap()).found.values()
    sharing = [one for one in found if is_tensor(one) and handle in _handles(one)]
    return sharing or [box[0]]


def _handles(tensor: Any) -> list[int]:
    """List the storages that a tensor looks into; a sparse one has several."""
    try:
        return [_torch.handle(part.untyped_storage()) for part in parts(tensor)]
    except (RuntimeError, NotImplementedError):
        return []


def _report(search: Backward, what: _What, start: float) -> ReferenceReport:
    chains, cycle = _chains(search, what.name)
    counts = [(search.references(key), search.unexplained(key)) for key in search.targets]
    n_references = sum(max(0, all_.python) + max(0, all_.native) for all_, _ in counts)
    python = sum(max(0, left.python) for _, left in counts)
    native = sum(max(0, left.native) for _, left in counts)
    is_garbage = cycle == COLLECTABLE
    freed = freed_with(search, search.objects, MOST_BELOW) if is_garbage else None
    sentence, code = _mend(search, chains, cycle, what.name)
    return ReferenceReport(
        name=what.name,
        description=what.description,
        chains=tuple(_as_typed(one, what.name) for one in _weighed(search, chains)),
        n_references=n_references,
        n_explained=n_references - python - native,
        complete=not (python or native or search.notes or cycle in {HELD, LOOSE}),
        verdict=_verdict(python, native, cycle, freed, what.size_bytes)
        or _out_of_sight(cycle, chains),
        collectable=is_garbage,
        uncollectable=cycle == UNCOLLECTABLE,
        mend=sentence.format(code) if code else sentence,
        code=code,
        size_bytes=what.size_bytes,
        notes=tuple(search.notes),
        duration_s=time.perf_counter() - start,
        freed_bytes=freed,
        device=what.device,
        origin=what.origin,
    )


def _weighed(search: Backward, chains: list[Chain]) -> Iterator[Chain]:
    """Add what would go with each holder, as far as time allows, and where each is from."""
    known: dict[int, int | None] = {}
    end, names = time.monotonic() + WEIGHING_S, id(notebook.user_namespace())
    for chain in chains:
        links: list[Link] = []
        for link in chain.links:
            if not link.key:  # a running call, or several boxes' worth of nodes
                links.append(link)
                continue
            if link.key in search.objects and link.key not in known and time.monotonic() < end:
                known[link.key] = freed_with(search, [link.key], MOST_BELOW_ONE)
            value = search.objects.get(link.key)
            is_users = not links and bool(chain.steps) and chain.steps[0][0] == names
            origin = origin_of(value, link.label if is_users else "")
            if not origin.text and links and link.edge == "saved_tensor":
                origin = saved_by(search.objects.get(links[-1].key))
            weight = known.get(link.key)
            links.append(
                dataclasses.replace(
                    link, retained_bytes=weight, cell=origin.cell, origin=origin.text
                )
            )
        yield dataclasses.replace(chain, links=tuple(links))


def _origin(name: str, value: Any) -> str:
    """Say which cell an object is from, by its own code or by the name that it was asked for by."""
    names = notebook.user_namespace()
    is_variable = name.isidentifier() and names.get(name) is value
    return origin_of(value, name if is_variable else "").text


def _mend(search: Backward, chains: list[Chain], cycle: str, name: str) -> tuple[str, str]:
    """Say how to let go, as (sentence, line of code or "")."""
    if cycle == COLLECTABLE:
        return "Garbage that waits for the collector: `{}` frees it.", "import gc; gc.collect()"
    if cycle == UNCOLLECTABLE:
        return break_cycle(chains[0], name)
    if not chains:
        return "", ""
    sentence, code = mend(chains[0], _way_out(search, chains[0]))
    is_everything = code.startswith(("Out.", "import sys;")) or len(chains) == 1
    is_said = is_everything or sentence.endswith(OTHERS)
    if not is_said and len({search.holder_of(hit.reference) for hit in search.hits}) > 1:
        sentence += OTHERS
    return sentence, code


def _way_out(search: Backward, chain: Chain) -> Way | None:
    """Find the nearest thing on a chain that, taken away, is enough to let the object go."""
    places, known = _places(search, chain)
    tried = list(reversed(places[:1] + places[1:][-MOST_WAYS:]))
    for one in sorted(tried, key=lambda place: place.is_needed):
        if goes_with(search, one.key, known.count(one.key), MOST_BELOW_WAY) is not False:
            return Way(one.code, one.container, is_enough=True)
    if not places:
        return None
    is_hidden = any(max(search.unexplained(key)) > 0 for key in search.targets)
    nearest = places[0 if is_hidden else -1]  # what is out of sight may hang on the first of them
    return Way(nearest.code, nearest.container, is_enough=False)


def _places(search: Backward, chain: Chain) -> tuple[list[Place], list[int]]:
    """List what can be taken away on a chain, and the ids of what the user knows to hold besides."""
    narrator = Narrator(
        search
    )  # which refers to keys of dictionaries, so it must go before we count
    known = [hit.reference for hit in search.hits if search.is_known(hit.reference)]
    for hit in search.hits:
        if any(str(one) == str(chain) for one in narrator.from_root(hit.reference)):
            places = narrator.places(hit.reference, chain.root)
            is_all = hit.reference in known  # there is nothing but what was typed
            short = [one for one in places if len(one.code) <= LONGEST_CODE]
            return short, [] if is_all else [one.child for one in known]
    return [], []


def _chains(search: Backward, name: str) -> tuple[list[Chain], str]:
    """Give the chains, and what kind of cycle or loose end holds it where no root does."""
    narrator = Narrator(search)
    if search.hits:
        found: dict[str, Chain] = {}
        for hit in _worth_telling(search):
            for chain in narrator.from_root(hit.reference):
                found.setdefault(str(chain), chain)
        # What the user typed is no news, unless it is all there is.
        others = [chain for chain in found.values() if not _is_spelled(chain, name)]
        return (others or list(found.values()))[:MOST_CHAINS], ""
    path = _cycle(search) if search.exhausted else []
    if not path:
        ends = _loose_ends(search) if search.exhausted else []
        return [narrator.from_loose_end(_way(search, end)) for end in ends], LOOSE if ends else ""
    counts = (search.unexplained(key) for key in search.objects)
    is_held = any(left.python > 0 or left.native > 0 for left in counts)
    kind = HELD if is_held else COLLECTABLE if collector_frees(search) else UNCOLLECTABLE
    return [narrator.from_cycle(path)], kind


def _worth_telling(search: Backward) -> Iterator[RootHit]:
    """Leave out what only leads through a library to a holder that is told already."""
    told = set[int]()
    for hit in search.hits:
        root, holder = search.roots.get(hit.reference.parent), search.holder_of(hit.reference)
        if search.finds_all or holder not in told or root is None or not _is_detour(root):
            yield hit
        told.add(holder)


def _is_detour(root: Root) -> bool:
    """Say whether a root is inside of somebody's library; old outputs and errors are the user's."""
    is_library = root.cost >= LIBRARY_COST and root.kind in {"VARIABLE", "OTHER"}
    return is_library and root.label.text != "sys"


def _loose_ends(search: Backward) -> list[int]:
    """Give the nearest holder that has a reference which nothing explains, if there is one."""
    open_ends = [key for key in search.toward if max(search.unexplained(key)) > 0]
    return sorted(open_ends, key=lambda key: len(_way(search, key)))[:1]


def _cycle(search: Backward) -> list[Reference]:
    """Find the nearest cycle that leads to a target, and give its way there."""
    import networkx as nx

    links = nx.DiGraph()
    for references in search.parents.values():
        links.add_edges_from((one.parent, one.child) for one in references)
    parts = [part for part in nx.strongly_connected_components(links) if len(part) > 1]
    parts += [{a} for a, b in links.edges if a == b]
    if not parts:
        return []
    depth = {key: len(_way(search, key)) for key in search.objects}
    first = min(parts, key=lambda part: min(depth.get(key, 1 << 30) for key in part))
    start = min(first, key=lambda key: (_dullness(search.objects[key]), depth.get(key, 0)))
    if start in search.targets:
        return _round(search, start, first)
    return _way(search, start)


def _dullness(value: Any) -> int:
    """Order what a cycle may be named by: the user's own types first, then tensors."""
    if is_tensor(value):
        return 1
    return 2 if is_node(value) or type(value).__module__ in {"builtins", "collections"} else 0


def _way(search: Backward, key: int) -> list[Reference]:
    path = []
    while key in search.toward:
        path.append(search.toward[key])
        key = path[-1].child
    return path


def _round(search: Backward, target: int, members: set[int]) -> list[Reference]:
    """Give the shortest way from a target round to itself."""
    starts = [one for key in members for one in search.parents.get(key, ()) if one.parent == target]
    ways = [[one, *_way(search, one.child)] for one in starts]
    return min(ways, key=len) if ways else []


def _verdict(python: int, native: int, cycle: str, freed: int | None, own: int | None) -> str:
    if cycle == COLLECTABLE:
        if not freed:
            return "Only a cycle keeps it: gc.collect() would free it."
        more = "" if freed == own else ", this and what else only the cycle holds"
        return f"Only a cycle keeps it: gc.collect() would free {bytes_text(freed)}{more}."
    if cycle == UNCOLLECTABLE:
        return "Only a cycle through C++ keeps it, which no collector frees."
    if native:
        return (
            f"{native} C++ reference{'s' * (native > 1)} cannot be named (DLPack, TorchScript, "
            "forward AD or a DDP reducer hold them this way)."
        )
    if python:
        return (
            f"{python} Python reference{'s' * (python > 1)} not visible to gc (a running "
            "expression, or C code)."
        )
    if cycle == HELD:
        return (
            "A cycle leads to it, and something not visible to gc refers to the cycle: gc.collect() "
            "may or may not free it."
        )
    return ""


def _out_of_sight(cycle: str, chains: list[Chain]) -> str:
    if cycle != LOOSE:
        return ""
    return (
        f"What holds the {chains[0].root} is not visible to gc (a running expression, or C code)."
    )


def _description(value: Any) -> str:
    if is_tensor(value):
        size = _size(value)
        return describe(value) + (f", {bytes_text(size)}" if size is not None else "")
    if isinstance_of(value, torch.UntypedStorage):
        return f"storage of {bytes_text(value.nbytes())}"
    return short_name(value)


def _size(value: Any) -> int | None:
    if isinstance_of(value, torch.UntypedStorage):
        return int(value.nbytes())
    return storage_bytes(value) if is_tensor(value) else None
