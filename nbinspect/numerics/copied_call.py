"""A call made again from copies: its tensors, modules and the variables its functions use.

So a check may convert them, write into them and take gradients, and the user's own stay as they
are. Functions of the user's own are rebuilt with the copies in place of the modules and tensors
among their global and enclosing variables.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from nbinspect import notebook
from nbinspect.tensors import describe, is_tensor

MOST_ITEMS = 10_000  # of a container whose tensors are copied
MOST_DEPTH = 4  # of functions that call functions
Convert = Callable[[torch.Tensor], torch.Tensor]


class NothingToCheckError(ValueError):
    """A function has no argument and no parameter that gradients could be taken of."""


def is_users(error: BaseException) -> bool:
    """Say whether an error comes from what a `CopiedCall` calls, not from the check around it."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code is not CopiedCall.__call__.__code__:
        at = at.tb_next
    return at is not None


@dataclass(slots=True)
class Leaf:
    """A tensor that gradients are taken of.

    Attributes:
        name: what the user calls it.
        value: the copy.
        description: shape and dtype as the user has it.
        is_parameter: whether it is a module's.
        put: each puts another tensor in its place.
    """

    name: str
    value: torch.Tensor
    description: str
    is_parameter: bool
    put: list[Callable[[torch.Tensor], None]] = field(default_factory=list)


def to_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor, with floating-point and complex values in double precision."""
    if tensor.is_complex():
        return as_it_is(tensor).to(torch.complex128)
    return as_it_is(tensor).to(torch.float64) if tensor.is_floating_point() else as_it_is(tensor)


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor, with its values one after the other."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return tensor.detach().clone()
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor.detach())


class CopiedCall:
    """A function and its arguments, copied; call it with tensors in place of the `leaves`.

    Args:
        fn: the function, module, method or partial.
        args: its arguments.
        kwargs: its keyword arguments.
        convert: copies a tensor.
        name: what the user calls the function.
        names: what the user calls each argument, by position or keyword.

    Attributes:
        leaves: what gradients are taken of.
        chosen: whether no tensor asked for gradients, so that all arguments are taken.
        was_compiled: whether the function behind a compiled one is called.
    """

    def __init__(
        self,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        convert: Convert,
        name: str,
        names: dict[int | str, str],
    ) -> None:
        self._convert = convert
        self._memo: dict[int, Any] = {}
        self._leaves: dict[int, Leaf] = {}
        self._modules: dict[int, nn.Module] = {}
        self._keep: list[Any] = [fn, args, kwargs]  # while their ids are keys
        self.was_compiled = False
        self._fn = self._value(fn, name, self._put_nowhere)
        paths, self._spec = pytree.tree_flatten_with_path((args, kwargs))
        self._flat: list[Any] = [value for _, value in paths]
        for at, (path, value) in enumerate(paths):
            put = functools.partial(self._flat.__setitem__, at)
            self._flat[at] = self._value(value, _name(path, names), put)
        self.chosen = not self._leaves
        if self.chosen:
            self._choose_all(paths, names)
        self.leaves = sorted(self._leaves.values(), key=lambda leaf: leaf.is_parameter)
        self._buffers = list(self._all_buffers())
        self._keep.clear()
        self._memo.clear()

    def __call__(self, *values: torch.Tensor) -> Any:
        """Call the function; buffers and other tensors are as at the first time."""
        __tracebackhide__ = True  # an error of the user's code is not ours to appear in
        given = set()
        for leaf, value in zip(self.leaves, values, strict=True):
            if self.chosen:  # the user's own takes changes in place, which a leaf does not
                value = value.clone()
            given.add(id(value))
            for put in leaf.put:
                put(value)
        for module, name, value in self._buffers:
            module._buffers[name] = value.clone()  # noqa: SLF001 - `copy_` would count as a change
        flat = [
            one.clone() if is_tensor(one) and id(one) not in given else one for one in self._flat
        ]
        args, kwargs = pytree.tree_unflatten(flat, self._spec)
        return self._fn(*args, **kwargs)

    def _put_nowhere(self, _value: Any) -> None:
        """Stand in for the place of the function itself, which never is a tensor."""

    def _choose_all(self, paths: Any, names: dict[int | str, str]) -> None:
        for at, (path, _) in enumerate(paths):
            value = self._flat[at]
            if is_tensor(value) and (value.is_floating_point() or value.is_complex()):
                words = describe(paths[at][1])
                leaf = Leaf(_name(path, names), value.requires_grad_(), words, is_parameter=False)
                leaf.put.append(functools.partial(self._flat.__setitem__, at))
                self._leaves[id(value)] = leaf

    def _value(self, value: Any, name: str, put: Callable[[Any], None], depth: int = 0) -> Any:
        """Copy a value if it is or holds a tensor; `put` replaces it where it is used."""
        if is_tensor(value):
            return self._tensor(value, name, put)
        value = self._uncompiled(value)
        if isinstance(value, nn.Module):
            return self._module(value, name)
        if isinstance(value, MethodType) and isinstance(value.__self__, nn.Module):
            owner = name.rpartition(".")[0] or type(value.__self__).__name__
            return MethodType(value.__func__, self._module(value.__self__, owner))
        if isinstance(value, functools.partial):
            return self._partial(value, depth)
        if isinstance(value, FunctionType):
            return self._function(value, depth)
        if type(value) in {list, tuple, dict} and len(value) <= MOST_ITEMS:
            return self._container(value, name, put, depth)
        return value

    def _container(self, value: Any, name: str, put: Callable[[Any], None], depth: int) -> Any:
        """Copy a container that a variable holds; a tuple is made anew for each change."""
        items = dict(value) if isinstance(value, dict) else dict(enumerate(value))
        made: Any = list(value) if isinstance(value, tuple) else copy.copy(value)

        def put_item(key: Any, item: Any) -> None:
            made[key] = item
            if isinstance(value, tuple):
                put(tuple(made))

        for key, item in items.items():
            place = functools.partial(put_item, key)
            made[key] = self._value(item, f"{name}[{key!r}]", place, depth)
        return tuple(made) if isinstance(value, tuple) else made

    def _uncompiled(self, value: Any) -> Any:
        inner = getattr(value, "_orig_mod", None)
        if inner is None and isinstance(value, FunctionType):
            inner = getattr(value, "_torchdynamo_orig_callable", None)
        self.was_compiled |= inner is not None
        return value if inner is None else inner

    def _tensor(
        self, tensor: Any, name: str, put: Callable[[Any], None], *, is_parameter: bool = False
    ) -> Any:
        if id(tensor) not in self._memo:
            made = self._convert(tensor)
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=False)
            self._memo[id(tensor)] = made
            self._keep.append(tensor)
            if tensor.requires_grad:
                self._leaves[id(tensor)] = Leaf(
                    name, made.requires_grad_(), describe(tensor), is_parameter
                )
        if id(tensor) in self._leaves:
            self._leaves[id(tensor)].put.append(put)
        return self._memo[id(tensor)]

    def _module(self, module: nn.Module, name: str) -> nn.Module:
        if id(module) in self._modules:
            return self._modules[id(module)]
        self._keep.append(module)
        if any(map(nn.parameter.is_lazy, module.parameters())):
            raise NothingToCheckError(
                f"{name} has parameters without a shape yet: call it once first"
            )
        for sub in module.modules():
            for value in vars(sub).values():
                if is_tensor(value) and id(value) not in self._memo:
                    self._memo[id(value)] = self._convert(value)
                    self._keep.append(value)
            for value in sub.buffers(recurse=False):
                self._memo.setdefault(id(value), self._convert(value))
        parameters = list(module.named_parameters(remove_duplicate=False))
        for path, parameter in parameters:
            self._tensor(parameter, f"{name}.{path}", self._put_nowhere, is_parameter=True)
        made: nn.Module = copy.deepcopy(module, dict(self._memo))
        self._modules[id(module)] = made
        for path, parameter in parameters:
            if id(parameter) in self._leaves:
                owner, _, key = path.rpartition(".")
                held = made.get_submodule(owner)._parameters  # noqa: SLF001 - takes any tensor
                self._leaves[id(parameter)].put.append(functools.partial(held.__setitem__, key))
        return made

    def _partial(self, one: functools.partial[Any], depth: int) -> Any:
        """Make a function that passes the arguments as they are at each call."""
        args, kwargs = list(one.args), dict(one.keywords)
        for at, value in enumerate(args):
            put = functools.partial(args.__setitem__, at)
            args[at] = self._value(value, f"argument {at}", put, depth)
        for key, value in kwargs.items():
            put = functools.partial(kwargs.__setitem__, key)
            kwargs[key] = self._value(value, key, put, depth)
        fn = self._value(one.func, "func", self._put_nowhere, depth)

        def call(*more: Any, **options: Any) -> Any:
            return fn(*args, *more, **{**kwargs, **options})

        return call

    def _function(self, fn: FunctionType, depth: int) -> Any:
        """Rebuild a function of the user's own whose variables are or hold tensors."""
        if depth >= MOST_DEPTH or not notebook.is_users_file(fn.__code__.co_filename):
            return fn
        if id(fn) in self._memo:
            return self._memo[id(fn)]
        names = {name for name in _names_used(fn.__code__) if name in fn.__globals__}
        variables = dict(fn.__globals__)
        cells = tuple(types.CellType(*_content(cell)) for cell in fn.__closure__ or ())
        made = FunctionType(fn.__code__, variables, fn.__name__, fn.__defaults__, cells)
        made.__kwdefaults__ = fn.__kwdefaults__
        self._memo[id(fn)] = made
        self._keep.append(fn)
        for name in names:
            put = functools.partial(variables.__setitem__, name)
            variables[name] = self._value(variables[name], name, put, depth + 1)
        for name, cell in zip(fn.__code__.co_freevars, cells, strict=True):
            for value in _content(cell):
                put = functools.partial(setattr, cell, "cell_contents")
                cell.cell_contents = self._value(value, name, put, depth + 1)
        return made

    def _all_buffers(self) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
        for module in self._modules.values():
            for sub in module.modules():
                for name, value in sub.named_buffers(recurse=False):
                    yield sub, name, value.detach().clone()


def _content(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not assigned yet
        return ()


def _names_used(code: CodeType) -> Iterator[str]:
    """Yield the global names in a function and in what is defined inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_used(constant)


def _name(path: Any, names: dict[int | str, str]) -> str:
    """Name a tensor among the arguments: the user's name and the way inside, ``batch['x']``."""
    _, key, *inside = path
    first = getattr(key, "idx", getattr(key, "key", 0))
    return names.get(first, f"input {first}") + pytree.keystr(tuple(inside))
