"""Which parameter is which, as the notebook spells it; known by weak references alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from nbinspect import notebook
from nbinspect.gradients import measure
from nbinspect.gradients.step_records import ParameterName
from nbinspect.heapgraph.objects import instance_dict
from nbinspect.tensors import class_name

MOST_PARTS = 200  # of a variable, looked through for a model
WITHIN = ("self", "cls")


@dataclass(slots=True)
class Known:
    """A parameter that has a name.

    Attributes:
        ref: the parameter itself.
        name: its name.
        model: the variable, or class, that its name begins with.
        place: where it stands among all.
        also: its other names in the same model.
    """

    ref: weakref.ref[torch.Tensor]
    name: str
    model: str
    place: int
    also: list[str] = field(default_factory=list)


class Names:
    """Names of the parameters of all models that there are.

    Args:
        only: a module, or the name of one, whose parameters alone count; None for all.
    """

    def __init__(self, only: nn.Module | str | None = None) -> None:
        self._known: dict[int, Known] = {}
        self._prefix = only if isinstance(only, str) else None
        self._allowed = set(map(id, only.parameters())) if isinstance(only, nn.Module) else None
        self._n_places = 0
        self.owned: set[int] = set()

    @property
    def missing(self) -> str:
        """The module that was to be watched, if there has been none of that name; else ""."""
        names = (name for known in self._known.values() for name in (known.name, *known.also))
        prefix = f"{self._prefix}."
        found = self._prefix is None or any(f"{name}.".startswith(prefix) for name in names)
        return "" if found else str(self._prefix)

    def scan(self) -> list[torch.Tensor]:
        """Name what is there now, and give the parameters that backward could reach.

        Cost: one pass over the heap, 0.1 s a million objects.
        """
        modules, optimizers = _found()
        spelled = _spelled()
        self._forget_dead()
        for module in sorted(modules, key=lambda one: _rank(one, spelled)):
            self._name_parts(module, spelled.get(id(module), class_name(type(module))))
        found = [known.ref() for known in self._known.values()]
        for optimizer in optimizers:
            some = parameters_of(optimizer)
            self.owned.update(map(id, some))
            self._name_loose(some, spelled, optimizer)
            found += some
        unique = {id(one): one for one in found if one is not None}
        return [one for one in unique.values() if self.wanted(one)]

    def _forget_dead(self) -> None:
        for key in [key for key, known in self._known.items() if known.ref() is None]:
            del self._known[key]
            self.owned.discard(key)

    def _name_parts(self, module: nn.Module, model: str) -> None:
        try:
            parts = list(module.named_parameters(remove_duplicate=False))
        except Exception:  # a module of the user's that cannot list its parameters
            return
        fresh = {id(one) for _, one in parts if self.of(one) is None and not is_lazy(one)}
        for path, one in parts:
            if id(one) in fresh:
                self._add(one, f"{model}.{path}", model)

    def _name_loose(
        self, some: Iterable[torch.Tensor], spelled: dict[int, str], optimizer: Any
    ) -> None:
        """Name what belongs to no module."""
        for number, one in enumerate(some):
            if self.of(one) is None:
                owner = spelled.get(id(optimizer), class_name(type(optimizer)))
                name = spelled.get(id(one), f"{owner} parameter {number}")
                self._add(one, name, name)

    def _add(self, parameter: torch.Tensor, name: str, model: str) -> None:
        known = self.of(parameter)
        if known is None:
            self._known[id(parameter)] = Known(weakref.ref(parameter), name, model, self._n_places)
            self._n_places += 1
        elif name != known.name:
            known.also.append(name)

    def of(self, parameter: torch.Tensor) -> Known | None:
        """Give what is known of a parameter."""
        known = self._known.get(id(parameter))
        return known if known is not None and known.ref() is parameter else None

    def learn(self, optimizer: Any, parameters: list[torch.Tensor]) -> None:
        """Name an optimizer's parameters, if some have no name yet."""
        self.owned.update(map(id, parameters))
        if any(self.of(one) is None for one in parameters):
            self.scan()
            self._name_loose(parameters, _spelled(), optimizer)

    def wanted(self, parameter: torch.Tensor) -> bool:
        """Say whether a parameter is to be watched."""
        if self._prefix is None and self._allowed is None:
            return True
        if self._allowed is not None:
            return id(parameter) in self._allowed
        known = self.of(parameter)
        if known is None:
            return True
        return any(f"{name}.".startswith(f"{self._prefix}.") for name in (known.name, *known.also))

    def place(self, parameter: torch.Tensor) -> int:
        """Say where a parameter stands among all; at the end if it has no name."""
        known = self.of(parameter)
        return known.place if known is not None else self._n_places

    def about(self, parameter: torch.Tensor) -> ParameterName:
        """Describe a parameter; one that no module and no optimizer has by its variable's name."""
        known = self.of(parameter)
        if known is None:
            name = _spelled().get(id(parameter), class_name(type(parameter)))
            self._add(parameter, name, name)
            known = self._known[id(parameter)]
        return ParameterName(
            known.name,
            measure.n_numbers(parameter),
            tuple(parameter.shape),
            str(parameter.dtype).removeprefix("torch."),
            tuple(known.also),
        )

    def beside(
        self, parameters: Iterable[int], reached: Iterable[int]
    ) -> Iterator[tuple[Known, torch.Tensor]]:
        """Give the other parameters of the models that some belong to.

        Args:
            parameters: ids of those that are not given.
            reached: ids of more whose models count: a model may be in backward's reach alone.
        """
        seen = set(parameters)
        models = {self._known[key].model for key in (*seen, *reached) if key in self._known}
        for key, known in list(self._known.items()):
            one = known.ref()
            if known.model in models and key not in seen and one is not None and self.wanted(one):
                yield known, one


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """List an optimizer's parameters, each once; but for those that have no shape yet."""
    all_ = (one for group in optimizer.param_groups for one in group["params"])
    found = (one for one in all_ if not is_lazy(one))
    return list({id(one): one for one in found}.values())


def optimizer_name(optimizer: Any) -> str:
    """Name an optimizer as the notebook does."""
    return _spelled().get(id(optimizer), class_name(type(optimizer)))


def notebook_models() -> list[tuple[str, nn.Module]]:
    """Give the models that the user has a name for, the whole and not its parts, with that name."""
    modules, _ = _found()
    spelled = _spelled()
    found: list[tuple[str, nn.Module]] = []
    inside: set[int] = set()
    for module in sorted(modules, key=lambda one: _rank(one, spelled)):
        if id(module) in spelled and id(module) not in inside and _size(module):
            found.append((spelled[id(module)], module))
            inside.update(map(id, module.modules()))
    return found


def _found() -> tuple[list[nn.Module], list[Any]]:
    """Give all modules with parameters, and all optimizers."""
    kinds: dict[type, str] = {}
    modules, optimizers = [], []
    for one in gc.get_objects():
        kind = type(one)
        if kind not in kinds:
            kinds[kind] = _kind(kind)
        if kinds[kind] == "module" and "_parameters" in one.__dict__:
            modules.append(one)
        elif kinds[kind] == "optimizer" and "param_groups" in one.__dict__:
            optimizers.append(one)
    return modules, optimizers


def _kind(kind: type) -> str:
    if issubclass(kind, nn.Module):
        return "module"
    return "optimizer" if issubclass(kind, torch.optim.Optimizer) else ""


def _rank(module: nn.Module, spelled: dict[int, str]) -> tuple[bool, bool, int]:
    """Put first what the user has a name for, wrappers last, and the whole before its parts."""
    own = module.__dict__
    parts, has_own = own.get("_modules") or {}, bool(own.get("_parameters"))
    wraps = len(parts) == 1 and not has_own and id(next(iter(parts.values()))) in spelled
    return id(module) not in spelled, wraps, -_size(module)


def _size(module: nn.Module) -> int:
    try:
        return sum(1 for _ in module.modules())
    except Exception:  # see `_name_parts`
        return 0


def _spelled() -> dict[int, str]:
    """Give the user's names for objects, and for what these hold directly.

    What a method calls ``self`` has a name elsewhere, if only as a part: ``trainer.optimizer``.
    """
    variables = list(_variables())
    named = [(name, value) for name, value in variables if name not in WITHIN]
    within = [(name, value) for name, value in variables if name in WITHIN]
    found: dict[int, str] = {}
    for name, value in named:
        found.setdefault(id(value), name)
    for some in (named, within):
        for name, value in some:
            for place, part in _parts(value):
                found.setdefault(id(part), f"{name}{place}")
    for name, value in within:
        found.setdefault(id(value), name)
    return found


def _variables() -> Iterator[tuple[str, Any]]:
    """Yield the notebook's variables, then those of the user's running functions, the innermost last."""
    for name, value in list(notebook.user_namespace().items()):
        if not str(name).startswith("_"):
            yield name, value
    for frame in reversed(list(notebook.running_frames())):
        if notebook.is_users_file(frame.code.co_filename):
            yield from frame.values.items()


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        return
    if type(value) is dict and len(value) <= MOST_PARTS:
        yield from ((f"[{key!r}]", part) for key, part in list(value.items()) if type(key) is str)
    elif type(value) in (list, tuple) and len(value) <= MOST_PARTS:
        yield from ((f"[{at}]", part) for at, part in enumerate(value))
    else:
        own = instance_dict(value)
        if own and len(own) <= MOST_PARTS:
            names = ((name, part) for name, part in list(own.items()) if type(name) is str)
            yield from ((f".{name}", part) for name, part in names)
