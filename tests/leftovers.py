"""Fails any test that leaves something behind: a mode, a hook, a patch, a thread, a tensor...

A pytest plugin. `SURVEY` lists what is looked at; each entry reads one kind of state as a
mapping, before the test and after its own fixtures are gone, and the two must be the same.
What is not loaded yet (torch, IPython, matplotlib) is not loaded for this, and not compared.
Random number generators are a test's own to draw from; warning filters pytest restores itself.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import itertools
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

GRACE_S = 1.0  # for threads that have been told to stop
# A process's first dispatch mode makes torch import its compiler, which does these for good.
TORCHS_OWN = {"torch.manual_seed"}
TORCHS_OWN_VARIABLES = {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}


class Same:
    """Compares by identity, and keeps the object so that its id stays its own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]  # compared, never looked up

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__} {getattr(self.value, '__name__', '')}>"


def _listed(values: Any) -> tuple[Same, ...]:
    return tuple(Same(value) for value in values)


def _torch() -> Any:
    return sys.modules.get("torch")


def modes() -> Mapping[str, Any]:
    if (torch := _torch()) is None:
        return {}
    dispatch = importlib.import_module("torch.utils._python_dispatch")
    return {
        "dispatch modes": _listed(dispatch._get_current_dispatch_mode_stack()),
        "function modes": _listed(torch.overrides._get_current_function_mode_stack()),
        "saved tensor hooks": _saved_tensor_hooks(torch),
    }


def _saved_tensor_hooks(torch: Any) -> Any:
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return top and _listed(top)


def global_hooks() -> Mapping[str, Any]:
    if _torch() is None:
        return {}
    found = {}
    for name in ("torch.nn.modules.module", "torch.optim.optimizer"):
        for attribute, hooks in vars(importlib.import_module(name)).items():
            if attribute.startswith("_global_") and isinstance(hooks, dict):
                found[f"{name}.{attribute}"] = _listed(hooks.values())
    return found


def switches() -> Mapping[str, Any]:
    if (torch := _torch()) is None:
        return {}
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic warn-only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "anomaly check_nan": torch.is_anomaly_check_nan_enabled(),
        "autocast on cpu": torch.is_autocast_enabled("cpu"),
        "autocast on cuda": torch.is_autocast_enabled("cuda"),
        "default dtype": torch.get_default_dtype(),
        "threads of torch": torch.get_num_threads(),
    }


def _callables(owner: Any) -> dict[str, Any]:
    kinds = (property, classmethod, staticmethod)
    return {
        f"{owner.__name__}.{name}": Same(value)
        for name, value in vars(owner).items()
        if callable(value) or isinstance(value, kinds)
    }


def patched_builtins() -> Mapping[str, Any]:
    return _callables(builtins)


def patched_classes() -> Mapping[str, Any]:
    if (torch := _torch()) is None:
        return {}
    owners = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
    return {name: same for owner in owners for name, same in _callables(owner).items()}


def replaced_functions() -> Mapping[str, Any]:
    """Functions of modules, which may also grow: torch imports parts of itself when used."""
    if (torch := _torch()) is None:
        return {}
    places = (torch, torch.autograd, torch.autograd.graph, torch.nn.functional, torch.random)
    found = {name: same for place in places for name, same in _callables(place).items()}
    return {name: same for name, same in found.items() if name not in TORCHS_OWN}


def _is_hypothesis(callback: Any) -> bool:
    """Its first property test makes it time the collector, from then on."""
    return (getattr(callback, "__module__", None) or "").startswith("hypothesis")


def interpreter() -> Mapping[str, Any]:
    not_ours = TORCHS_OWN_VARIABLES | {"PYTEST_CURRENT_TEST"}
    found = {
        "gc enabled": gc.isenabled(),
        "gc thresholds": gc.get_threshold(),
        "gc debug flags": gc.get_debug(),
        "gc callbacks": _listed(each for each in gc.callbacks if not _is_hypothesis(each)),
        "sys trace": Same(sys.gettrace()),
        "sys profile": Same(sys.getprofile()),
        "threading trace": Same(threading.gettrace()),
        "threading profile": Same(threading.getprofile()),
        "sys.excepthook": Same(sys.excepthook),
        "sys.displayhook": Same(sys.displayhook),
        "threading.excepthook": Same(threading.excepthook),
        "environment": {name: os.environ[name] for name in os.environ.keys() - not_ours},
    }
    for name in ("SIGINT", "SIGTERM"):
        found[f"handler of {name}"] = Same(signal.getsignal(getattr(signal, name)))
    if hasattr(sys, "monitoring"):
        found["monitoring tools"] = tuple(map(sys.monitoring.get_tool, range(6)))
    return found


def matplotlib_settings() -> Mapping[str, Any]:
    if (matplotlib := sys.modules.get("matplotlib")) is None:
        return {}
    return {"matplotlib rcParams": dict(dict.items(matplotlib.rcParams))}  # resolves no backend


def open_figures() -> Mapping[str, Any]:
    pyplot = sys.modules.get("matplotlib.pyplot")
    return {"matplotlib figures": pyplot.get_fignums() if pyplot else []}


def _running_shell() -> Any:
    shells = sys.modules.get("IPython.core.interactiveshell")
    if shells is None or not shells.InteractiveShell.initialized():
        return None
    return shells.InteractiveShell.instance()


def shell_state() -> Mapping[str, Any]:
    shell = _running_shell()
    found: dict[str, Any] = {"the IPython shell": Same(shell)}
    if shell is None:
        return found
    for event, callbacks in shell.events.callbacks.items():
        found[f"shell event {event}"] = list(callbacks)  # bound methods: equal, not identical
    for name in ("input_transformers_cleanup", "input_transformers_post", "ast_transformers"):
        found[f"shell.{name}"] = list(getattr(shell, name))
    for kind, magics in shell.magics_manager.magics.items():
        found[f"{kind} magics"] = sorted(magics)
    found["completer matchers"] = list(shell.Completer.custom_matchers)
    found["custom exception handlers"] = shell.custom_exceptions
    return found


def threads() -> Mapping[str, Any]:
    """Threads by name and id; dummies stand for threads that Python did not start."""
    alive = [t for t in threading.enumerate() if not isinstance(t, threading._DummyThread)]
    return {f"thread {thread.name}": Same(thread) for thread in alive}


SURVEY: tuple[Callable[[], Mapping[str, Any]], ...] = (
    modes,
    global_hooks,
    switches,
    patched_builtins,
    patched_classes,
    replaced_functions,
    interpreter,
    matplotlib_settings,
    open_figures,
    shell_state,
    threads,
)
GROWING = {"replaced_functions"}


def survey() -> dict[str, Mapping[str, Any]]:
    return {read.__name__: read() for read in SURVEY}


def differences(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Say what is not as it was; a kind of state that was not loaded before is no difference."""
    lines = []
    for kind, old in before.items():
        new = after[kind]
        names = old.keys() & new.keys() if kind in GROWING or not old else old.keys() | new.keys()
        lines += [_line(name, old, new) for name in sorted(names) if old.get(name) != new.get(name)]
    return lines


def _line(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if name not in old:
        return f"{name} was not there before"
    if name not in new:
        return f"{name} is gone"
    was, now = old[name], new[name]
    if isinstance(was, dict):
        return f"{name} changed: {', '.join(k for k in was | now if was.get(k) != now.get(k))}"
    if isinstance(was, list | tuple) and isinstance(now, list | tuple):
        added, gone = [v for v in now if v not in was], [v for v in was if v not in now]
        return f"{name}: {added} added, {gone} gone"
    return f"{name} was {was!r}, is {now!r}"


Refs = Mapping[int, weakref.ref[Any]]


def live_tensors() -> Refs:
    """Every tensor that Python's collector knows, held weakly.

    It knows hundreds of thousands of objects, so no Python code runs for each of them.
    """
    if (torch := _torch()) is None:
        return {}
    objects = gc.get_objects()
    kinds = set(map(id, _with_subclasses(torch.Tensor)))  # ids: a metaclass may define a hash
    alive = itertools.compress(objects, map(kinds.__contains__, map(id, map(type, objects))))
    return {id(tensor): weakref.ref(tensor) for tensor in alive}


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    for one in type.__subclasses__(kind):
        yield from _with_subclasses(one)


def new_tensors(before: Refs) -> tuple[list[str], Refs]:
    """Describe tensors made since `before` that even a collection does not free.

    Returns:
        The descriptions, and the tensors there are now.
    """

    now = live_tensors()
    fresh = [ref for key, ref in now.items() if key not in before or before[key]() is not ref()]
    for generation in (1, 2):  # nearly all that is garbage is young
        if any(ref() is not None for ref in fresh):
            gc.collect(generation)
    left = [tensor for ref in fresh if (tensor := ref()) is not None]
    return [f"a live {type(t).__name__} of shape {tuple(t.shape)}" for t in left], now


def _wait_for_threads(before: Mapping[str, Any]) -> None:
    end = time.monotonic() + GRACE_S
    while threads().keys() - before.keys() and time.monotonic() < end:
        time.sleep(0.01)


def _may_keep_tensors(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("keeps_tensors")
    if marker is not None and not marker.kwargs.get("reason"):
        pytest.fail("keeps_tensors needs a reason", pytrace=False)
    failed = item.stash.get(_FAILED, False)  # its traceback holds the test's variables
    return marker is not None or failed


_FAILED = pytest.StashKey[bool]()
# The tensors after the last test, as long as nothing but a test may have made or freed one since.
_TENSORS = pytest.StashKey["Refs | None"]()


def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> None:
    _forget_tensors(fixturedef, request)


def pytest_fixture_post_finalizer(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> None:
    _forget_tensors(fixturedef, request)


def _forget_tensors(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
    """What serves several tests is set up, or ends, between two of them."""
    if fixturedef.scope != "function":
        request.config.stash[_TENSORS] = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = not report.passed
    return report


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare the process after the test, and after its own fixtures, with what it was."""
    stash = request.config.stash
    before, tensors = survey(), stash.get(_TENSORS, None)
    tensors = live_tensors() if tensors is None else tensors
    stash[_TENSORS] = None
    yield
    request.node.funcargs.clear()  # else pytest itself keeps what the test's fixtures returned
    _wait_for_threads(before["threads"])
    left = differences(before, survey())
    if not _may_keep_tensors(request.node):
        kept, stash[_TENSORS] = new_tensors(tensors)
        left += kept
    if left:
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)
