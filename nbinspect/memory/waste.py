"""Memory that is held for nothing, each with the line that frees it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from nbinspect.heapgraph.letting_go import (
    empty_last_error,
    forget_output,
    is_assignable,
    without_graphs,
)
from nbinspect.holders import Claim, HeldStorage
from nbinspect.memory.holdings import ITEM, item_range, pattern
from nbinspect.memory.records import Waste
from nbinspect.render.format import bytes_text, percent

SMALLEST = 64 << 10  # less than this is not worth a sentence
SMALL_PART = 0.1  # a view that uses less of its storage than this wastes the rest


def wasted(storages: Iterable[HeldStorage], device: str) -> tuple[Waste, ...]:
    """Name what the live storages of one device waste, the largest first."""
    found = [one for rule in RULES for one in rule([*storages], device)]
    return tuple(sorted(found, key=lambda one: (-one.size_bytes, one.what)))


def _grouped(
    storages: list[HeldStorage], place: Callable[[HeldStorage], str]
) -> Iterator[tuple[str, list[HeldStorage], int]]:
    """Yield (place, storages, bytes) for each place that holds enough to be told."""
    groups: dict[str, list[HeldStorage]] = defaultdict(list)
    for storage in storages:
        if name := place(storage):
            groups[name].append(storage)
    for name, group in groups.items():
        size = sum(one.size_bytes for one in group)
        if size >= SMALLEST:
            yield name, group, size


def _tensors(group: list[HeldStorage]) -> str:
    """Say what they are: the one by its size and type, more by their number."""
    return f"a {group[0].tensor} tensor" if len(group) == 1 else f"{len(group)} tensors"


def _small_views(storages: list[HeldStorage], device: str) -> Iterator[Waste]:
    for one in storages:
        lost, owner = one.size_bytes - one.used_bytes, one.claims[0].owner
        if lost < SMALLEST or one.used_bytes > one.size_bytes * SMALL_PART or one.only:
            continue
        share = percent(one.used_bytes / one.size_bytes)
        mend = _copied(one.claims[0])
        what = f"`{owner}` uses {share} of the {bytes_text(one.size_bytes)} it keeps"
        yield Waste(f"{what}: it is a view of a larger tensor", mend, lost, device)


def _copied(claim: Claim) -> str:
    """Give the line that puts a copy in a view's place."""
    owner = claim.owner
    if not is_assignable(owner):
        return ""
    if claim.kind == "PARAMETER":  # the parameter itself must stay
        return f"{owner}.data = {owner}.data.clone()"
    return "" if claim.container.endswith("tuple") else f"{owner} = {owner}.clone()"


def _kept_graphs(storages: list[HeldStorage], device: str) -> Iterator[Waste]:
    def place(one: HeldStorage) -> str:
        claim = one.claims[0]
        if claim.kind != "SAVED_FOR_BACKWARD" or one.only:
            return ""
        name = pattern(claim.owner)
        return name if name != claim.owner else ""

    for name, group, size in _grouped(storages, place):
        owners = {one.claims[0].owner for one in group}
        if len(owners) < 2:
            continue
        items, whole = item_range(sorted(owners, key=_numbers)), name.partition("[#]")[0]
        container = group[0].claims[0].container if name == f"{whole}[#]" else ""
        mend = without_graphs(whole, container) if is_assignable(whole) else ""
        what = (
            f"`{items}` keep the graphs that made them; from now on append `.item()` or `.detach()`"
        )
        yield Waste(what, mend, size, device)


def _numbers(name: str) -> list[int]:
    return [int(number) for number in ITEM.findall(name)]


def _old_outputs(storages: list[HeldStorage], device: str) -> Iterator[Waste]:
    def place(one: HeldStorage) -> str:
        return one.claims[0].owner if one.only == "OUT_HISTORY" else ""

    for name, group, size in _grouped(storages, place):
        what = f"only the displayed value `{name}` keeps {_tensors(group)}"
        yield Waste(what, _forget(name), size, device)


def _forget(name: str) -> str:
    """Give the line that makes IPython forget a displayed value."""
    number = re.match(r"Out\[(\d+)\]", name)
    if number is not None:
        return forget_output(number[1])
    blank = re.match(r"_{1,3}(?!\w)", name)
    return f"get_ipython().del_var('{blank[0]}')" if blank else ""


def _old_errors(storages: list[HeldStorage], device: str) -> Iterator[Waste]:
    def place(one: HeldStorage) -> str:
        owners = (c.owner for c in one.claims if c.history == "TRACEBACK")
        owner = next(owners, one.claims[0].owner)
        return owner.partition(", ")[0] if one.only == "TRACEBACK" else ""

    for name, group, size in _grouped(storages, place):
        kept = f"keeps {_tensors(group)}"
        error = re.match(r"sys\.last_value[\w.\[\]]*", name)
        if error is not None:
            mend = empty_last_error(error[0])
            yield Waste(f"only the last error {kept}", mend, size, device)
        elif name.startswith(("sys.last_", "IPython's last")):
            mend = empty_last_error(name)
            yield Waste(f"only the last error's traceback {kept}", mend, size, device)
        else:
            mend = f"{name}.__traceback__ = None" if is_assignable(name) else ""
            what = f"only the traceback of the error in `{name}` {kept}"
            yield Waste(what, mend, size, device)


def _cycles(storages: list[HeldStorage], device: str) -> Iterator[Waste]:
    def place(one: HeldStorage) -> str:
        only_cycles = all(claim.kind == "CYCLE" for claim in one.claims)
        return one.claims[0].why if only_cycles else ""

    for why, group, size in _grouped(storages, place):
        first = group[0].claims[0].owner
        if "waits" in why:
            what = f"garbage in cycles waits for Python's collector, e.g. `{first}`"
            yield Waste(what, "import gc; gc.collect()", size, device)
        else:
            what = (
                f"a cycle through C++ that no collector frees holds `{first}`: a restart of the "
                "kernel frees it; use torch.autograd.grad instead of backward(create_graph=True)"
            )
            yield Waste(what, "", size, device)


def _hooked(storages: list[HeldStorage], device: str) -> Iterator[Waste]:
    def place(one: HeldStorage) -> str:
        only_hooks = all(claim.kind == "HOOK" for claim in one.claims)
        return one.claims[0].owner.partition(", ")[0] if only_hooks else ""

    for name, _, size in _grouped(storages, place):
        what = (
            f"only the `{name}` keeps this: when it has done its work, take it off with the "
            "`.remove()` of the handle that registering it gave"
        )
        yield Waste(what, "", size, device)


def _frozen_gradients(storages: list[HeldStorage], device: str) -> Iterator[Waste]:
    frozen = [one for one in storages if one.frozen_gradient]
    size = sum(one.size_bytes for one in frozen)
    if size >= SMALLEST:
        owner = frozen[0].claims[0].owner
        more = f" and {len(frozen) - 1} more" if len(frozen) > 1 else ""
        mend = _without_gradients([one.claims[0].owner for one in frozen])
        what = f"`{owner}`{more}: gradients of parameters that are frozen now"
        yield Waste(what, mend, size, device)


def _without_gradients(owners: list[str]) -> str:
    """Give the line that drops gradients: one by one if they are few, else of their whole model."""
    if len(owners) <= 2 and all(map(is_assignable, owners)):
        return " = ".join([*owners, "None"])
    parts = [owner.split(".")[:-2] for owner in owners]
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*parts, strict=False))
    model = ".".join(takewhile(lambda part: not part.isdigit(), (part for part, *_ in columns)))
    if not is_assignable(model):
        return ""
    return f"for p in {model}.parameters(): p.grad = p.grad if p.requires_grad else None"


def _orphaned_parameters(storages: list[HeldStorage], device: str) -> Iterator[Waste]:
    def place(one: HeldStorage) -> str:
        claim = one.claims[0]
        optimizer, found, _ = claim.owner.partition(".param_groups[")
        return optimizer if found and claim.kind == "OPTIMIZER_STATE" and not one.only else ""

    for optimizer, _, size in _grouped(storages, place):
        mend = f"del {optimizer}" if is_assignable(optimizer) else ""
        what = f"`{optimizer}` lists the parameters of a model that nothing else holds"
        yield Waste(what, mend, size, device)


RULES = (
    _small_views,
    _kept_graphs,
    _old_outputs,
    _old_errors,
    _cycles,
    _hooked,
    _frozen_gradients,
    _orphaned_parameters,
)
