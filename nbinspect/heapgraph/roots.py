"""Where names begin: the notebook, modules, displayed values, the last error, running calls."""

from __future__ import annotations

import contextvars
import logging
import sys
from dataclasses import dataclass, replace
from typing import Any

from nbinspect import notebook
from nbinspect.heapgraph.go_betweens import CURRENT
from nbinspect.heapgraph.labelling import Label
from nbinspect.heapgraph.objects import isinstance_of, own_dict, referents

LIBRARY_COST = 4
EVENT_LOOP = ("asyncio", "_asyncio")


@dataclass(frozen=True, slots=True)
class Root:
    """An object whose own holders are nobody's concern.

    Attributes:
        label: how names below it begin.
        kind: the holder kind of what it holds, unless the way there says otherwise.
        cost: the higher, the worse the name; a user's own variable costs nothing.
    """

    label: Label
    kind: str
    cost: int


def roots() -> dict[int, Root]:
    """Give the roots by the id of the object that each of them is."""
    found: dict[int, Root] = {}
    for name, module in list(sys.modules.items()):
        names = own_dict(module)
        if names is not None and type(name) is str:
            file = names.get("__file__")
            is_users = type(file) is str and notebook.is_users_file(file)
            cost = 2 if is_users else LIBRARY_COST
            label = Label(name, "attributes")
            if name.partition(".")[0] in EVENT_LOOP:
                label, cost = Label("asyncio's event loop", "unseen"), 6
            found.setdefault(id(names), Root(label, "VARIABLE", cost))
    found[id(vars(sys.modules["__main__"]))] = Root(Label("", "names"), "VARIABLE", 0)
    found.update(_context_roots())
    found.update(_loggers())
    found.update(_shell_roots(notebook.shell()))
    return found


def _context_roots() -> dict[int, Root]:
    """Give what holds the context variables as they are set here and now."""
    context = contextvars.copy_context()  # shares its tree of values with the running one
    return {id(one): Root(Label(CURRENT), "VARIABLE", 1) for one in referents(context)}


def _loggers() -> dict[int, Root]:
    """Give loggers, which everybody asks for by name; each library would give them another one."""
    manager = logging.getLogger().manager
    names = [(name, one) for name, one in list(manager.loggerDict.items()) if type(name) is str]
    found: dict[int, Root] = {}
    for name, one in [("", manager.root), *names]:
        if isinstance_of(one, logging.Logger):
            label = Label(f"logging.getLogger({repr(name) if name else ''})")
            own = own_dict(one)
            found[id(one)] = Root(label, "VARIABLE", 3)
            found[id(own)] = Root(replace(label, context="attributes"), "VARIABLE", 3)
    return found


def _shell_roots(shell: Any) -> dict[int, Root]:
    """IPython's own places; what only it holds is an old output or an old error."""
    if shell is None:
        return {}
    found = {id(shell.user_ns): Root(Label("", "names"), "VARIABLE", 0)}
    places = (
        ("user_ns_hidden", "OUT_HISTORY", Label("", "names")),
        ("displayhook", "OUT_HISTORY", Label("displayhook", "")),
        ("last_execution_result", "OUT_HISTORY", Label("last_execution_result", "")),
        ("InteractiveTB", "TRACEBACK", Label("IPython's last traceback", "")),
    )
    for name, kind, label in places:
        place = getattr(shell, name, None)
        if place is not None:
            found[id(place)] = Root(label, kind, 6)
            own = None if type(place) is dict else getattr(place, "__dict__", None)
            if type(own) is dict:  # the instance may hold its values through a dictionary
                found[id(own)] = Root(Label(label.text, "attributes"), kind, 6)
    history = getattr(shell, "history_manager", None)
    outputs = (shell.user_ns.get("_oh"), getattr(history, "output_hist", None))
    found.update(
        (id(one), Root(Label("Out"), "OUT_HISTORY", 6)) for one in outputs if one is not None
    )
    found[id(shell)] = Root(Label("get_ipython()"), "OTHER", 9)
    found[id(vars(shell))] = Root(Label("get_ipython()", "attributes"), "OTHER", 9)
    kernel = vars(shell).get("kernel")
    if kernel is not None:
        label = Label("Jupyter's kernel", "unseen")
        found |= {id(one): Root(label, "OTHER", 9) for one in (kernel, own_dict(kernel))}
    return found
