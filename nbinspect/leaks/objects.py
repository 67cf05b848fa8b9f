"""Growth of plain Python objects, as far as no tensor explains it."""

from __future__ import annotations

import functools
import gc
import logging
import re
import sys
import threading
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import psutil

from nbinspect import notebook
from nbinspect.heapgraph.letting_go import is_assignable
from nbinspect.heapgraph.objects import instance_dict, isinstance_of, own_bytes
from nbinspect.heapgraph.resolving import as_code, is_of_library
from nbinspect.leaks.containers import base_of, items_of
from nbinspect.leaks.counts import ObjectCounts
from nbinspect.leaks.larger import all_small_views, views_pattern
from nbinspect.leaks.lengths import Longer, bytes_per_run, new_items
from nbinspect.leaks.owners import pieces
from nbinspect.leaks.patterns import HOOK_AGAIN, LAST_FEW, Pattern, sentence
from nbinspect.leaks.records import Growth, ObjectGrowth
from nbinspect.memory.system import proportional_bytes
from nbinspect.referrers.answer import refchain
from nbinspect.render.format import plain_number
from nbinspect.tensors import class_dict, class_name, is_node, is_tensor, mro

MOST_TYPES = 5
MOST_CONTAINERS = 5
MOST_OWN = 100_000
LIBRARIES = ("builtins.", "collections.", "torch.", "functools.", "_thread.", "threading.")
WORTH_BYTES = 1 << 10  # per repetition; less is a log of numbers
WORTH_NUMBERS_BYTES = 1 << 20
WORTH_OBJECTS = 10
WORTH_OF_LIBRARY_BYTES = 16 << 10  # of what no name of the user's keeps
OTHERS = {*notebook.PLUMBING, "torch", "sys", "gc", "linecache", "multiprocessing"}
CONTAINERS = (dict, list, tuple, set)
CALLED = (types.FunctionType, types.MethodType, functools.partial, logging.Handler)
LOGGER = "logging.getLogger("
ON_HOOK = re.compile(r"hook .+? on ([^,]+)")
HOOKS = re.compile(r"_hooks$")
NUMBERS = (int, float, complex, bool, type(None))


def object_growths(counts: ObjectCounts, first: int) -> tuple[ObjectGrowth, ...]:
    """List the types whose number rose with every repetition from number `first` on."""
    told, rows = counts.counts[first:], []
    for name, new in counts.new(counts.rising(first)).items():
        if new and not is_tensor(new[0]) and not is_node(new[0]):
            rise = (told[-1][name] - told[0].get(name, 0)) / (len(told) - 1)
            size, what = round(rise * sum(map(_size, new)) / len(new)), _runs(new)
            row = ObjectGrowth(name, rise, size, told[-1][name], "", what)
            rows.append((row, new[:1]))
        del new
    rows.sort(key=lambda row: (not row[0].runs, *_rank(row[0])))
    del rows[MOST_TYPES:]  # a search for each of the others would tell little
    return tuple([replace(one, holder=_chain(box, one)) for one, box in rows])


def _rank(one: ObjectGrowth) -> tuple[bool, int]:
    return one.type_name.startswith(LIBRARIES), -one.bytes_per_run


def _runs(new: list[Any]) -> str:
    """Say what runs as long as these objects do, "" if nothing does."""
    if isinstance_of(new[0], threading.Thread):
        running = set(map(id, threading.enumerate()))
        return "thread" if any(id(one) in running for one in new) else ""
    return "process" if any(_process(one) is not None for one in new) else ""


def _process(value: Any) -> psutil.Process | None:
    """Give the living process that an object of `multiprocessing` stands for."""
    if not isinstance_of(value, BaseProcess):
        return None
    number = getattr((instance_dict(value) or {}).get("_popen"), "pid", None)
    try:
        found = psutil.Process(number)
        return found if found.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def _size(value: Any) -> int:
    """Give an object's own bytes and its dictionary's; of a process's, the process's."""
    process = _process(value)
    if process is not None:
        size = proportional_bytes(process)
        return size if isinstance(size, int) else 0
    return own_bytes(value)


def _chain(box: list[Any], one: ObjectGrowth) -> str:
    """Give a chain to an object; of what runs the one from the user's names, if there is one."""
    report = refchain(box.pop(), name=one.type_name, all=bool(one.runs))
    chains = list(map(str, report.chains))
    named = [text for text in chains if _is_users(text, _root(text))]
    return next(iter(named or chains), report.verdict)


def python_growths(
    counts: ObjectCounts,
    n_runs: int,
    objects: Iterable[ObjectGrowth],
    found: Iterable[Growth],
    ours: object,
) -> Iterator[Growth]:
    """Give what one of the user's own names keeps and no growth of tensors explains.

    Args:
        counts: of all repetitions.
        n_runs: how many of them are compared.
        objects: the types whose number rose.
        found: growth of tensors.
        ours: what watches, whose own containers do not count.
    """
    known = [one.holder for one in found]
    running = [one for one in objects if one.runs]
    others = [one for one in objects if not one.runs]
    told = (
        *chain.from_iterable(map(_of_type, running)),
        *_longer(counts, n_runs, ours),
        *chain.from_iterable(map(_of_type, others)),
    )
    patterns = {one.pattern for one in found} & {*PATTERNS.values()}
    for growth in told:
        is_told = any(_is_same(growth.holder, one) for one in known)
        if not is_told and growth.pattern not in patterns:
            known.append(growth.holder)
            yield growth


def _is_same(one: str, other: str) -> bool:
    """Say whether one holder is the other, or a part of it."""
    first, second = sorted((_words(one), _words(other)), key=len)
    return second[: len(first)] == first


def _words(holder: str) -> list[str]:
    """Cut a holder's name at its attributes and items; of a hook that of what it is on."""
    hook = ON_HOOK.match(holder)
    name = hook[1] if hook else holder.removeprefix("lru_cache of ")
    return re.findall(r"\w+|\W+", name)


def _root(name: str) -> str:
    found = re.search(r"[^\W\d]\w*", name.removeprefix("lru_cache of "))
    return found[0] if found else ""


def _is_users(holder: str, root: str) -> bool:
    """Say whether a holder's name begins with a variable of the user's.

    An object without a name is called what its class is, which may well be a variable too.
    """
    value = notebook.user_namespace().get(root)
    if value is None or isinstance(value, type(sys)):
        return False
    first = re.match(r"\w+\.(\w+)", holder)
    return not isinstance(value, type) or first is None or first[1] in _all_names(value)


def _all_names(kind: type) -> set[str]:
    return {name for one in mro(kind) for name in class_dict(one)}


def _longer(counts: ObjectCounts, n_runs: int, ours: object) -> Iterator[Growth]:
    """Describe the containers of the user's that got longer with every repetition."""
    longer = counts.lengths.longer(n_runs, _containers_below(ours))
    sizes = {id(one.container): bytes_per_run(one) for one in longer}
    longer = [one for one in longer if sizes[id(one.container)] >= _worth(one)]
    longer.sort(key=lambda one: -sizes[id(one.container)])
    for one in longer[:MOST_CONTAINERS]:
        size, base, least = sizes[id(one.container)], base_of(one.container), _worth(one)
        n = (one.sizes[-1] - one.sizes[0]) / n_runs
        item = _item_type(one)
        text = str(next(iter(refchain(one.container, name=item).chains), ""))
        if _is_worth(text, size, least):
            holder = text.replace(" -> ", ", ")
            growth = _Kept(holder, base.__name__, item, n, size, text).growth()
            yield _with_views(growth, one.container)


def _with_views(growth: Growth, container: Any) -> Growth:
    """Say how to keep parts of arrays without the whole, if that is what a container has."""
    items = items_of(container)
    if not all_small_views(items):
        return growth
    found = views_pattern(growth.holder, growth.container, items)
    return replace(growth, pattern=found.name, mend=sentence(found), code=found.code)


def _is_worth(holder: str, bytes_per_run: int, least: int = WORTH_BYTES) -> bool:
    """Say whether it is the user's, or much that a library keeps; not torch's or Jupyter's own."""
    root = _root(holder)
    if _is_users(holder, root) or holder.startswith(LOGGER):
        return bytes_per_run >= least
    return root in sys.modules and root not in OTHERS and bytes_per_run >= WORTH_OF_LIBRARY_BYTES


class _Kept(NamedTuple):
    """Objects of one type that one holder gets more of."""

    holder: str
    container: str
    item: str
    n: float
    bytes_per_run: int
    chain: str
    runs: str = ""

    def growth(self) -> Growth:
        """Describe it, with what to do and the line that lets go of it."""
        pattern, advice, code = self._known() or (
            "Python objects kept",
            f"`{self.holder}` keeps {self._number()} each time: {LAST_FEW}.",
            self._code(),
        )
        return Growth(
            bytes_per_run=self.bytes_per_run,
            tensors_per_run=0,
            items_per_run=self.n if self.container else 0,
            holder=self.holder,
            container=self.container,
            kind="OTHER",
            device="cpu",
            where=None,
            chain=self.chain,
            mend=sentence(Pattern(pattern, advice, code)),
            code=code,
            pattern=pattern,
            state="live",
            item=self.item,
        )

    def _known(self) -> tuple[str, str, str] | None:
        if self.runs:
            return PATTERNS[self.runs], ADVICE[self.runs], ""
        if HOOKS.search(self.holder):
            return *HOOK_AGAIN, self._code()
        if "Gcf.figs" in self.holder:
            advice = "Figures stay open in pyplot: `plt.close(figure)` when one is saved or shown."
            return (
                "figures left open",
                advice,
                "import matplotlib.pyplot; matplotlib.pyplot.close('all')",
            )
        return None

    def _number(self) -> str:
        number = plain_number(round(self.n, 1))
        return f"{number} more object{'s' * (self.n != 1)} of type {self.item}"

    def _code(self) -> str:
        if self.holder.startswith(LOGGER) and self.container and is_assignable(self.holder):
            return f"import logging; {self.holder}.clear()"
        is_users, place = _is_users(self.holder, _root(self.holder)), as_code(self.holder)
        if not is_users or not is_assignable(place) or is_of_library(self.holder):
            return ""
        return f"{place}.clear()" if self.container else f"del {place}"


PATTERNS = {"thread": "threads that do not end", "process": "processes that do not end"}
ADVICE = {
    "thread": (
        "A thread of each repetition still runs: let it come to its end, and wait for that with "
        "`thread.join()`."
    ),
    "process": (
        "A process of each repetition still runs, as the workers of a `DataLoader` do while its "
        "iterator is kept: make the loader once, or `del` the old one."
    ),
}


def _of_type(one: ObjectGrowth) -> Iterator[Growth]:
    kind = one.type_name.rpartition(".")[2]
    holder = pieces(one.holder)[0].partition(" -> ")[0] if one.holder else ""
    is_users = _is_users(holder, _root(holder))
    if one.runs and not is_users:
        holder = f"running {'processes' if one.runs == 'process' else 'threads'}"
    is_many = is_users and one.per_run >= WORTH_OBJECTS
    if one.runs or is_many or _is_worth(holder, one.bytes_per_run):
        kept = _Kept(holder, "", kind, one.per_run, one.bytes_per_run, one.holder, one.runs)
        yield kept.growth()


def _worth(one: Longer) -> int:
    """Say from how many bytes a container is worth a word.

    A log of numbers is none; functions and handlers are, however small: each is called again.
    """
    values = _values(one)
    if values and all(isinstance_of(item, *CALLED) for item in values):
        return 0
    is_log = all(isinstance_of(item, *NUMBERS, str) for item in new_items(one))
    is_numbers = is_log and not any(isinstance_of(item, str) for item in values)
    return WORTH_NUMBERS_BYTES if is_numbers else WORTH_BYTES


def _values(one: Longer) -> list[Any]:
    """List new items, without the keys of a dictionary."""
    return new_items(one)[
        isinstance_of(one.container, dict) :: 1 + isinstance_of(one.container, dict)
    ]


def _item_type(one: Longer) -> str:
    found = Counter(class_name(type(item)) for item in _values(one))
    return found.most_common(1)[0][0] if found else "object"


def _containers_below(value: object) -> set[int]:
    """Give the ids of the containers that nbinspect keeps for itself below one of its objects."""
    seen, level = set[int](), [value]
    while level and len(seen) < MOST_OWN:
        new = [one for one in level if id(one) not in seen]
        seen.update(map(id, new))
        level = gc.get_referents(*filter(_is_ours, new))
    return seen


def _is_ours(value: object) -> bool:
    """Say whether a value is a container, or of a class of nbinspect's that holds some."""
    kind = type(value)
    if issubclass(kind, CONTAINERS):
        return True
    module = class_dict(kind).get("__module__")
    return type(module) is str and module.startswith("nbinspect.leaks")
