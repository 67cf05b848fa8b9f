"""The known ways to make memory grow: what each looks like, and the line that mends it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import NamedTuple

from nbinspect import notebook
from nbinspect.heapgraph.letting_go import is_assignable
from nbinspect.heapgraph.objects import isinstance_of
from nbinspect.heapgraph.resolving import is_of_library, resolved
from nbinspect.holders import Claim
from nbinspect.leaks.containers import Filling, filling
from nbinspect.leaks.records import LETS_GO
from nbinspect.ops import Site

TENSORS = {"Tensor", "Parameter", "ndarray"}
MODELS = {"PARAMETER", "BUFFER", "OPTIMIZER_STATE"}
CLEARED = {"list", "dict", "set", "deque"}
DEFAULT = re.compile(r"(.+), default argument '(\w+)'")
CACHE = re.compile(r"lru_cache of ([\w.]+)")
LAST_FEW = "keep only the last few, or write them to a file"
IN_FRAME = re.compile(r"^frame .*?, variable ")
CUT_GRADIENTS = (
    "import gc, torch; [setattr(one, 'grad', None) for one in gc.get_objects() "
    "if type(one) in (torch.Tensor, torch.nn.Parameter) and one.is_leaf "
    "and one.grad is not None and one.grad.grad_fn is not None]"
)
CUT_CTX = "import gc; [vars(one).clear() for one in gc.get_objects() if type(one).__name__ == {!r}]"
UNSEEN = (
    "Nothing that Python can see keeps it: a call that still runs in another thread may, or an "
    "object of a library, such as a traced function. Let go of what its line made."
)
CTX = re.compile(r"grad_fn (\w+Backward)\b")  # torch's own end in a number
ON_CTX = (
    "A node of the graph keeps its own output as an attribute of `ctx`: hand it to "
    "`ctx.save_for_backward` instead."
)
HOOK_AGAIN = (
    "hook registered again",
    "Each repetition registers the hook again: register it once, or call `handle.remove()` when done.",
)
SMALL_PART = 0.5  # a view that uses less of its storage keeps the rest for nothing


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of something that grows.

    Attributes:
        holder: what keeps it.
        container: the built-in type whose items keep it, "" if the holder has one name for it all.
        kinds: bytes by holder kind.
        claims: who is charged with parts of it.
        state: live, garbage or uncollectable.
        used_fraction: how much of the storages is used by the tensors over them.
        is_scalar: what the holder has under its own name is one number.
        sites: the lines that allocated it.
        chain: one chain of references to it, "" if none was found.
        code: the line that lets go of the end of that chain, "" if there is none.
        hooks: ids of the hooks through which the first and the last of it are held.
    """

    holder: str
    container: str
    kinds: dict[str, int]
    claims: tuple[Claim, ...]
    state: str
    used_fraction: float
    is_scalar: bool
    sites: tuple[Site, ...]
    chain: str
    code: str
    hooks: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        """The holder as its own code calls it."""
        return without_frame(self.holder)

    @property
    def filling(self) -> Filling:
        """What the container is filled with."""
        return filling(self.holder)


class Pattern(NamedTuple):
    """A known mistake, what to do from now on, and the line that lets go of what has grown."""

    name: str
    advice: str
    code: str = ""


def without_frame(holder: str) -> str:
    """Give a holder's name as its own code calls it."""
    return IN_FRAME.sub("", holder)


def recognised(evidence: Evidence) -> Pattern:
    """Give the first pattern that fits; the last one always does."""
    return next(found for rule in RULES if (found := rule(evidence)) is not None)


def sentence(pattern: Pattern) -> str:
    """Put advice and code together."""
    if not pattern.code:
        return pattern.advice
    return pattern.advice + LETS_GO.format(pattern.code)


def _uncollectable(one: Evidence) -> Pattern | None:
    if one.state != "uncollectable":
        return None
    if ".grad" in one.chain or not one.chain:
        advice = (
            "A tensor holds its gradient, whose graph holds the tensor: use `torch.autograd.grad(..., "
            "create_graph=True)` instead of `backward(create_graph=True)`, or set `.grad = None` "
            "after each step."
        )
        return Pattern("backward with create_graph", advice, CUT_GRADIENTS)
    found = CTX.search(one.chain)
    return Pattern("output kept on ctx", ON_CTX, CUT_CTX.format(found[1]) if found else "")


def _self_cycle(one: Evidence) -> Pattern | None:
    if one.state != "garbage":
        return None
    if CTX.search(one.chain):
        return Pattern("output kept on ctx", ON_CTX, "import gc; gc.collect()")
    whose = one.name.partition(".")[0]
    advice = (
        f"`{whose}` refers to itself, so it dies only when Python's collector runs, which knows "
        "nothing of the memory of tensors: keep one of the references weak (`weakref.WeakMethod`, "
        "`weakref.proxy`), or break it when done."
    )
    return Pattern("cycle of objects", advice, "import gc; gc.collect()")


def _kept_error(one: Evidence) -> Pattern | None:
    if _main(one) != "TRACEBACK" and not re.search(r", frame |\bframe \w", one.holder + one.chain):
        return None
    if _main(one) == "FRAME" or not one.code:
        return None
    code = one.code if not one.container else _cleared(one)
    advice = "Keep the text of an error, `str(error)`, instead of the error with its calls."
    return Pattern("errors kept with their calls", advice, code)


def _displayed(one: Evidence) -> Pattern | None:
    if "OUT_HISTORY" not in one.kinds or _main(one) != "OUT_HISTORY":
        return None
    advice = "IPython keeps every value that a cell ends with: end the line with `;`."
    code = (
        "get_ipython().displayhook.flush(); "
        "get_ipython().push(dict.fromkeys(('_', '__', '___'), ''), interactive=False)"
    )
    return Pattern("values kept in Out", advice, code)


def _number(one: Evidence) -> str:
    return "`.item()`" if one.is_scalar else "`.mean().item()`"


def _hook(one: Evidence) -> Pattern | None:
    if not (_main(one) == "HOOK" or "hook " in one.chain or "hook " in one.holder):
        if not one.container or not _is_hooks(one.holder):
            return None
        advice = f"A hook adds to `{one.name}` at each call: keep the latest only, or {_number(one)} of it."
        return Pattern("hook that stores tensors", advice, _cleared(one))
    if len(one.hooks) > 1:
        return Pattern(*HOOK_AGAIN, one.code)
    advice = "A hook stores what passes through it: take it off with `handle.remove()` when done."
    return Pattern("hook that stores tensors", advice, one.code)


def _unfinished(one: Evidence) -> Pattern | None:
    if " of thread " in one.chain:
        advice = (
            "A thread of each repetition still runs: let it come to its end, and wait for that with "
            "`thread.join()`."
        )
        return Pattern("threads that do not end", advice)
    if "coroutine " not in one.chain:
        return None
    advice = "Each repetition starts a task that does not end: `await` it, or `task.cancel()` it."
    return Pattern("tasks that do not end", advice, _cleared(one))


def _cached(one: Evidence) -> Pattern | None:
    text = one.holder + one.chain
    return cache_pattern(text, one.code) if "lru_cache of " in text else None


def cache_pattern(text: str, code: str = "") -> Pattern:
    """Say how to bound the cache that a name or chain leads through."""
    found = CACHE.search(text)
    named = found[1] if found else ""
    advice = f"The cache of `{named}` keeps what it is called with and what it gives: "
    advice += "give it a small `maxsize`."
    if "." in named:
        advice = (
            f"The cache of `{named}` belongs to the class, and its keys hold every instance: cache "
            "on the instance, or give it a small `maxsize`."
        )
    code = code or (f"{named}.cache_clear()" if is_assignable(named) else "")
    return Pattern("lru_cache on a method" if "." in named else "lru_cache", advice, code)


def _on_ctx(one: Evidence) -> Pattern | None:
    reasons = [claim.why for claim in one.claims]
    found = [why for why in reasons if why.startswith("attribute ")]
    if not found or any(why.startswith("saved by") for why in reasons):
        return None
    name, _, node = found[0].removeprefix("attribute ").partition(" of ")
    advice = (
        f"`{node}` keeps `ctx.{name}`, which backward does not release: hand it to "
        "`ctx.save_for_backward`."
    )
    return Pattern("plain attribute on ctx", advice, _detached(one))


def _graph(one: Evidence) -> Pattern | None:
    if "SAVED_FOR_BACKWARD" not in one.kinds or _main(one) in MODELS:
        return None
    retained = ""
    if _says(one.sites, "retain_graph=True"):
        retained = " Drop `retain_graph=True` but where backward really runs twice."
    if one.container:
        keep = "`.item()`" if one.is_scalar else "`.detach()`"
        advice = f"`{one.name}` keeps the graph behind each item: append {keep} of it.{retained}"
        name = "retain_graph" if retained else "loss or outputs kept with their graphs"
        return Pattern(name, advice, _detached(one))
    if one.filling.container:
        advice = f"`{one.name}` carries the graph of every earlier repetition: detach its tensors."
        return Pattern("state not detached", advice + retained, _each(one, "detach"))
    if one.is_scalar:
        advice = (
            f"`{one.name}` carries the graphs of all that was added to it: add `.item()`.{retained}"
        )
        return Pattern("running total with its graph", advice, _detached(one))
    advice = (
        f"`{one.name}` carries the graph of every earlier repetition: start each with "
        f"`{one.name}.detach()`.{retained}"
    )
    return Pattern("state not detached", advice, _detached(one))


def _models(one: Evidence) -> Pattern | None:
    if _main(one) not in MODELS:
        return None
    optimizer, _, part = one.name.rpartition(".")
    if part == "param_groups":
        advice = (
            f"`{optimizer}` gets one more group of parameters each time: call `add_param_group` "
            "once for each, or make a new optimizer."
        )
        return Pattern("parameters added to an optimizer", advice)
    if part == "state" and _main(one) == "OPTIMIZER_STATE":
        advice = (
            f"`{one.name}` keeps the state of parameters that are no longer used: make a new "
            "optimizer when the parameters are new."
        )
        return Pattern("optimizer state of old parameters", advice)
    if one.filling.is_of_model:
        advice = (
            f"`{one.name}` is part of a model and gets more parameters each time: make them once, "
            "in `__init__`."
        )
        return Pattern("model that gets longer", advice)
    advice = (
        f"`{one.name}` keeps a whole model or optimizer of each repetition: keep its score, or "
        "save its `state_dict()` to a file."
    )
    return Pattern("a model of each repetition", advice, _cleared(one))


def _views(one: Evidence) -> Pattern | None:
    if one.used_fraction > SMALL_PART or not one.container:
        return None
    advice = f"What `{one.name}` holds are views that keep larger tensors whole: append `.clone()`."
    return Pattern("views that keep whole tensors", advice, _each(one, "clone"))


def _kept(one: Evidence) -> Pattern | None:
    if not one.container:
        return None
    kind = one.filling.item
    advice = (
        f"`{one.name}` gets longer each time: keep a number of each ({_number(one)}), or only the "
        "last few."
    )
    if kind and kind not in TENSORS and not one.filling.is_nested:
        advice = (
            f"`{one.name}` gets longer each time, by objects of type {kind}: add each only once, "
            "and take out what is no longer needed."
        )
    root = notebook.user_namespace().get(one.holder.partition(".")[0])
    if isinstance(root, type):
        advice += " It belongs to the class, so no instance takes it along when it goes."
    return Pattern("tensors kept", advice, _cleared(one))


def _other(one: Evidence) -> Pattern:
    if one.chain and one.holder != one.chain and is_assignable(one.holder):
        advice = f"`{one.name}` leads to one more each time: cut the chain of objects somewhere."
        return Pattern("chain of objects", advice, f"del {one.holder}")
    if not one.chain:
        return Pattern("", UNSEEN, one.code)
    return Pattern("", "Let it go, or replace it instead of adding to it.", one.code)


RULES: tuple[Callable[[Evidence], Pattern | None], ...] = (
    _uncollectable,
    _self_cycle,
    _displayed,
    _cached,
    _hook,
    _kept_error,
    _unfinished,
    _on_ctx,
    _graph,
    _models,
    _views,
    _kept,
    _other,
)


def _main(one: Evidence) -> str:
    """Give the holder kind with the most bytes."""
    return max(one.kinds, key=lambda kind: one.kinds[kind])


def _cleared(one: Evidence) -> str:
    """Give the line that empties the holder."""
    if default := DEFAULT.fullmatch(one.holder):
        place = _of_default(*default.groups())
        return f"{place}.clear()" if place and one.container in CLEARED else ""
    if one.container in CLEARED and is_assignable(one.holder):
        return "" if is_of_library(one.holder) else f"{one.holder}.clear()"
    return one.code


def _of_default(function: str, argument: str) -> str:
    """Spell a function's default argument as code, "" if it is none or cannot be."""
    value = resolved(function)
    if not isinstance_of(value, FunctionType) or not is_assignable(function):
        return ""
    if argument in (value.__kwdefaults__ or {}):
        return f"{function}.__kwdefaults__[{argument!r}]"
    names = value.__code__.co_varnames[: value.__code__.co_argcount]
    defaults = names[len(names) - len(value.__defaults__ or ()) :]
    at = defaults.index(argument) if argument in defaults else None
    return f"{function}.__defaults__[{at}]" if at is not None else ""


def _detached(one: Evidence) -> str:
    if one.container:
        return _each(one, "detach")
    return f"{one.holder} = {one.holder}.detach()" if is_assignable(one.holder) else one.code


def _each(one: Evidence, method: str) -> str:
    """Give the line that puts the result of a method in each item's place."""
    holder, inside = one.holder, one.filling
    if not is_assignable(holder) or not inside.is_all_tensors:
        return _cleared(one)
    if inside.container == "list":
        return f"{holder}[:] = [one.{method}() for one in {holder}]"
    if inside.container == "tuple":
        return f"{holder} = tuple(one.{method}() for one in {holder})"
    if inside.container == "dict":
        return f"{holder}.update({{key: one.{method}() for key, one in {holder}.items()}})"
    return _cleared(one)


def _source(site: Site) -> str:
    """Give the source of the function or cell that a line is in."""
    if site is None:
        return ""
    code, _ = site
    lines = [line for _, _, line in code.co_lines() if line]
    last = max(lines, default=code.co_firstlineno)
    return "".join(notebook.source_lines(code.co_filename)[code.co_firstlineno - 1 : last])


def _says(sites: Iterable[Site], text: str) -> bool:
    return any(text in _source(site).replace(" ", "") for site in sites)


def _is_hooks(holder: str) -> bool:
    """Say whether some live module calls a hook that speaks of the holder by name."""
    from nbinspect.leaks.hooks import hook_codes

    names = set(re.findall(r"\w+", holder))
    return any(names & {*code.co_names, *code.co_freevars} for code in hook_codes())
