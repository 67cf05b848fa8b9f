"""How to let go: the line of code that fits the last holder that has a name."""

from __future__ import annotations

import ast
import asyncio
import builtins
import dataclasses
import re
import sys
from types import ModuleType
from typing import NamedTuple

from nbinspect import notebook
from nbinspect.heapgraph.letting_go import (
    NAME,
    empty_last_error,
    forget_output,
    is_assignable,
    without_graphs,
)
from nbinspect.heapgraph.objects import isinstance_of
from nbinspect.heapgraph.resolving import is_needed, resolved
from nbinspect.referrers.records import Chain, Link
from nbinspect.referrers.spelling import as_code

LONGEST_CODE = 200
OTHERS = " Other references hold it too: each needs its own."
HOOK_HOLDERS = {"OrderedDict", "dict", "list", "set", "deque"}  # nodes' own cannot be spelled
ITEM = re.compile(r"(.+)\[(?:\d+|'[^']*')\]")


class Way(NamedTuple):
    """The nearest thing that code can take out of its holder so that the object goes.

    Attributes:
        code: how it is spelled.
        container: what it is an item of, as in `Link.container`.
        is_enough: nothing else holds the object then, as far as that is known.
    """

    code: str
    container: str
    is_enough: bool


def mend(chain: Chain, way: Way | None) -> tuple[str, str]:
    """Say how to break a chain, as (sentence, line of code or "").

    Args:
        chain: references from a root down to the object.
        way: what can be taken away, None if there is nothing that code can spell.
    """
    chain = _as_code(chain)
    first = chain.links[0].label
    if chain.root.startswith("cycle"):
        return "", ""
    if chain.root.startswith("unnamed "):
        return f"It goes when the {chain.root} does.", ""
    for rule in RULES:
        is_wider = way is not None and way.is_enough and way.code != first
        if rule is _kept_error and is_wider:  # a list of errors, each of which holds it
            continue
        if found := rule(chain):
            return _in_reach(first, *found)
    if not is_assignable(first):
        return _in_reach(first, *_no_code(chain.links[0], way))
    sentence, code = _in_reach(first, *_of_holder(chain, way))
    if code and any(link.edge == "hook" for link in chain.links):
        sentence = f"Take the hook off with its `handle.remove()`. Or: {sentence}"
    return sentence, code


def _as_code(chain: Chain) -> Chain:
    """Spell the parts of containers of modules, ``net.0.weight``, as code can: ``net[0].weight``."""
    first = chain.links[0]
    code = as_code(first.label)
    if code in {"", first.label}:
        return chain
    droppable = code if first.droppable == first.label else first.droppable
    link = dataclasses.replace(first, label=code, droppable=droppable)
    return dataclasses.replace(chain, links=(link, *chain.links[1:]))


def _of_holder(chain: Chain, way: Way | None) -> tuple[str, str]:
    """Say how to break a chain whose first link is a name that the user can write."""
    first = chain.links[0].label
    held = chain.links[1] if len(chain.links) > 1 else None
    if held is None or chain.links[0].droppable not in {"", first} or len(first) > LONGEST_CODE:
        return _drop(chain.links[0], way)
    if held.label.startswith("grad_fn "):
        return _graph(chain.links[0])
    if len(chain.links) > 2:
        return _drop(chain.links[0], way)
    if held.edge == "grad":
        code = f"{first}.grad = None"
        return "Free the gradient with `{}`, or all with `zero_grad(set_to_none=True)`.", code
    if held.edge == "base":
        return "Keep a copy of the part with `{}`.", f"{first} = {first}.clone()"
    if held.edge == "ndarray" and chain.links[0].type_name.startswith("Tensor "):
        return "Own the numbers instead: `{}`.", f"{first} = {first}.clone()"
    if held.edge == "ndarray" and chain.links[0].type_name == "ndarray":  # no memoryview
        return "Own the numbers instead: `{}`.", f"{first} = {first}.copy()"
    return _drop(chain.links[0], way)


def _in_reach(first: str, sentence: str, code: str) -> tuple[str, str]:
    """See to it that the line can be run where the user is: a library's insides are left alone."""
    if not code or code.startswith(("import ", "from ", "Out.")):
        return sentence, code
    if first.startswith("logging.getLogger("):
        return sentence, f"import logging; {code}"
    names, module = notebook.user_namespace(), _module_of(first)
    of_module = re.fullmatch(rf"del {re.escape(module)}\.(\w+)", code) if module else None
    if of_module and not _is_users(module) and is_needed(sys.modules[module], of_module[1]):
        return _set_back(module, of_module[1])
    base = re.match(r"\w+", first)
    is_library = base and type(names.get(base[0])) is ModuleType and "._" in code
    if not is_library and _free_names(code) <= names.keys() | vars(builtins).keys():
        return sentence, code
    if module and _is_users(module):
        return sentence, f"import {module}; {code}"
    return f"It goes when {first} lets go of it.", ""


def _set_back(module: str, name: str) -> tuple[str, str]:
    """Say how to mend what a library's module goes by: to delete it would break the library."""
    if f"__{name}__" in vars(sys.modules[module]):
        code = f"import {module}; {module}.{name} = {module}.__{name}__"
        return "Set it back with `{}`.", code
    return f"It goes when {module}.{name} is set to something else, as it was before.", ""


def _free_names(code: str) -> set[str]:
    """Give the names that a line of code uses and does not make itself."""
    names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    used = {node.id for node in names if not isinstance(node.ctx, ast.Store)}
    return used - {node.id for node in names if isinstance(node.ctx, ast.Store)}


def _module_of(name: str) -> str:
    """Give the module that a name begins with, "" if there is none or it is a name of the user's."""
    parts = name.split(".")
    if type(notebook.user_namespace().get(parts[0], sys)) is not ModuleType:
        return ""
    starts = (".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
    return next((module for module in starts if module in sys.modules), "")


def _is_users(module: str) -> bool:
    """Say whether a module is the user's own: of a file of theirs, or made while running."""
    own = vars(sys.modules[module])
    file = own.get("__file__")
    return notebook.is_users_file(file) if isinstance(file, str) else own.get("__spec__") is None


def _drop(first: Link, way: Way | None) -> tuple[str, str]:
    if way is None:
        way = Way(first.droppable or first.label, first.container, is_enough=True)
    code = way.code
    if len(code) > LONGEST_CODE:  # Python's own parser fails at some thousand brackets
        code = code[: re.search(r"\W|$", code).start()]  # type: ignore[union-attr]  # "$" matches
    is_array = way.container == "ndarray" and code == way.code  # arrays let no item go
    sentence = "Let it go with `{}`." if code == first.label else "Let it go with its holder: `{}`."
    if not way.is_enough:
        sentence += OTHERS
    return sentence, f"{code} = None" if is_array else f"del {code}"


def break_cycle(chain: Chain, name: str) -> tuple[str, str]:
    """Say how to break a cycle through C++, as (sentence, line of code or "")."""
    if any(link.edge == "grad" for link in chain.links):
        return (
            "Break the cycle with `{}`, and use `torch.autograd.grad` where gradients need a graph.",
            f"{name}.grad = None",
        )
    if any(link.label.startswith("hook ") for link in chain.links):
        return "A hook closes the cycle: take it off with its `handle.remove()`.", ""
    second = chain.links[1].label if len(chain.links) > 1 else ""
    on_ctx = re.fullmatch(r"grad_fn \w+\.(\w+)", second)
    if on_ctx is None:
        return "Keep a detached copy where the cycle closes: `.detach()`.", ""
    code = f"{name}.grad_fn.{on_ctx[1]} = None"
    return (
        "Its own grad_fn keeps a view of it: break that with `{}`, and keep no output on ctx.",
        code,
    )


def _no_code(first: Link, way: Way | None) -> tuple[str, str]:
    """Say how to let go of a holder whose name is not code, e.g. ``seen, a key``, ``fut.result()``."""
    if first.type_name == "frame":
        return f"It goes when {first.label} returns.", ""
    whole = NAME.match(first.label)
    if way is None and whole and first.label[whole.end() :].startswith((",", ".", "[")):
        way = Way(whole[0], "", is_enough=True)
    if way is not None:
        return _drop(first, way)
    return f"It goes when {first.label} ends or lets go of it.", ""


def _graph(first: Link) -> tuple[str, str]:
    item = ITEM.fullmatch(first.label)
    is_one_of_few = first.container == "mixed dict"
    code = without_graphs(item[1], first.container) if item and not is_one_of_few else ""
    if code:
        return "Let the graphs go with `{}`, and keep `.item()` or `.detach()` from now on.", code
    return "Cut the graph off with `{}`.", f"{first.label} = {first.label}.detach()"


def _displayed(chain: Chain) -> tuple[str, str] | None:
    number = re.match(r"Out\[(\d+)\]", chain.links[0].label)
    return ("Forget the output with `{}`.", forget_output(number[1])) if number else None


def _last_error(chain: Chain) -> tuple[str, str] | None:
    first = chain.links[0].label
    if not first.startswith(("sys.last_", "IPython's last")):
        return None
    for link in chain.links[1:]:
        if not link.label.startswith((".__cause__", ".__context__", ".args")):
            break
        first += link.label
    return "Empty the last error with `{}`.", empty_last_error(first)


def _kept_error(chain: Chain) -> tuple[str, str] | None:
    holder, first = chain.links[0], chain.links[0].label
    if not is_assignable(first) or holder.droppable != first or len(chain.links) < 2:
        return None
    if not chain.links[1].label.startswith("frame ") or holder.type_name in {"traceback", "frame"}:
        return None
    return "Keep the error without its frames: `{}`.", f"{first} = {first}.with_traceback(None)"


def _in_context(chain: Chain) -> tuple[str, str] | None:
    variable, found, _ = chain.links[0].label.partition(".get()")
    if not found or not is_assignable(variable):
        return None
    return "Let the context variable go with `{}`.", f"{variable}.set(None)"


def _widget(chain: Chain) -> tuple[str, str] | None:
    known = re.match(r"ipywidgets\.widgets\.widget\._instances\['\w+'\]", chain.links[0].label)
    if known is None:
        return None
    return "Close the widget with `{}`.", f"import ipywidgets; {known[0]}.close()"


def _figure(chain: Chain) -> tuple[str, str] | None:
    figure = re.search(r"\bGcf\.figs\[(\d+)\]", chain.links[0].label)
    if figure is None:
        return None
    code = f"import matplotlib.pyplot; matplotlib.pyplot.close({figure[1]})"
    return "Pyplot keeps each figure until `{}`.", code


def _cached(chain: Chain) -> tuple[str, str] | None:
    for cache, key in zip(chain.links, chain.links[1:], strict=False):
        if key.label.startswith("lru_cache of ") and is_assignable(cache.label):
            return "Empty the cache with `{}`.", f"{cache.label}.cache_clear()"
    return None


def _in_queue(chain: Chain) -> tuple[str, str] | None:
    pool, found, _ = chain.links[0].label.partition("._work_queue, an element")
    if not found or not is_assignable(pool):
        return None
    return "Drop what has not begun with `{}`.", f"{pool}.shutdown(wait=False, cancel_futures=True)"


def _finalizer(chain: Chain) -> tuple[str, str] | None:
    known = re.match(
        r"weakref\.finalize\._registry\[([^<\]]+(?:\[[^\]]*\])*)\]", chain.links[0].label
    )
    if known is None or not is_assignable(known[1]):
        return None
    return "Take the finalizer off with `{}`.", f"{known[1]}.detach()"


def _suspended(chain: Chain) -> tuple[str, str] | None:
    first = chain.links[0]
    if first.type_name in {"generator", "coroutine"} and is_assignable(first.label):
        return "End it with `{}`.", f"{first.label}.close()"
    if first.type_name == "Task" and is_assignable(first.label):
        more = f"; del {first.label}" if first.droppable in {"", first.label} else ""
        sentence = "Cancel it with `{}`: it ends when its loop runs next."
        return sentence, f"{first.label}.cancel(){more}"
    return None


def _scheduled(chain: Chain) -> tuple[str, str] | None:
    found = re.match(r"(.+)\.(?:_args|_callback)\b", chain.links[0].label)
    if found is None or not isinstance_of(resolved(found[1]), asyncio.Handle):
        return None
    return "Cancel the call with `{}`.", f"{found[1]}.cancel()"


def _hook(chain: Chain) -> tuple[str, str] | None:
    for before, link in zip(chain.links, chain.links[1:], strict=False):
        if link.label.startswith("hook ") and before.type_name in HOOK_HOLDERS:
            code, module = as_code(before.label), _module_of(before.label)
            if code and module and not _is_users(module):
                name, _, place = link.droppable.removeprefix(f"{module}.").partition("[")
                one = f"from {module} import {name}; del {name}[{place}"
                return "Take the hook off with its `handle.remove()`, or with `{}`.", one
            if code:
                all_ = f"{code}.clear()"
                return "Take the hook off with its `handle.remove()`, or all with `{}`.", all_
    return None


def _optimizer(chain: Chain) -> tuple[str, str] | None:
    for place in (".param_groups[", ".state, a key"):
        optimizer, found, _ = chain.links[0].label.partition(place)
        if found and is_assignable(optimizer):
            return "Let the optimizer go with its model: `{}`.", f"del {optimizer}"
    optimizer, found, _ = chain.links[0].label.partition(".state[")
    if found and is_assignable(optimizer):
        return "If training is over, free its state with `{}`.", f"{optimizer}.state.clear()"
    return None


RULES = (
    _displayed,
    _last_error,
    _kept_error,
    _in_context,
    _figure,
    _widget,
    _cached,
    _in_queue,
    _finalizer,
    _scheduled,
    _suspended,
    _hook,
    _optimizer,
)
