"""A line that changes a tensor in place, written so that it makes a new one."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch

from nbinspect.autograd_graph.mends import only_statement

FUNCTIONS: dict[str, Any] = {
    "torch": torch,
    "F": torch.nn.functional,
    "functional": torch.nn.functional,
    "init": None,
}
"""What a name that is no tensor's means, None where no function has one that is out of place."""


def out_of_place(text: str, name: str = "") -> str:
    """Write a line so that it makes a new tensor; "" where unsure.

    ``h += 1`` becomes ``h = h + 1`` and ``y = h.relu_()`` becomes ``y = h = h.relu()``. Where only a
    part is set, or there is no such operation out of place, a copy is changed:
    ``h = h.clone(); h[0] = 1``.

    Args:
        text: the line.
        name: of the tensor; where it is ``hs[0]``, that is no part of a tensor but of a list.
    """
    statement = only_statement(text)
    if isinstance(statement, ast.AugAssign):
        return _augmented(statement, text, name)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        return _on_a_copy(statement.targets[0], text)
    if not isinstance(statement, ast.Expr | ast.Assign | ast.Return):
        return ""
    changed, value = _made_anew(statement.value)
    if changed is None:
        return ""
    if value is None or _whole(changed) is None:
        return "" if isinstance(statement, ast.Return) else _on_a_copy(changed, text)
    if isinstance(statement, ast.Return):
        return f"return {ast.unparse(value)}"
    targets = [*(statement.targets if isinstance(statement, ast.Assign) else ()), changed]
    names = dict.fromkeys(map(ast.unparse, targets))
    return " = ".join([*names, ast.unparse(value)])


def _augmented(statement: ast.AugAssign, text: str, name: str) -> str:
    target = ast.unparse(statement.target)
    if isinstance(statement.target, ast.Subscript) and target != name:
        return _on_a_copy(statement.target, text)
    if target != name and _whole(statement.target) is None:
        return ""
    return f"{target} = {ast.unparse(ast.BinOp(statement.target, statement.op, statement.value))}"


def _on_a_copy(changed: ast.expr, text: str) -> str:
    """Put a copy of what is changed before a line that changes a part of it."""
    while isinstance(changed, ast.Subscript):
        changed = changed.value
    whole = _whole(changed)
    return f"{whole} = {whole}.clone(); {text}" if whole is not None else ""


def _whole(value: ast.expr) -> str | None:
    """Write a variable or an attribute that can be set, None for what is neither."""
    is_plain = isinstance(value, ast.Name)
    if isinstance(value, ast.Attribute):
        is_plain = value.attr not in {"data", "grad"} and _whole(value.value) is not None
    return ast.unparse(value) if is_plain else None


def _made_anew(value: ast.expr | None) -> tuple[ast.expr | None, ast.expr | None]:
    """Give what a call changes in place, and the call that makes a new one.

    Returns:
        None for what is changed if the call is no such; None for the call if torch has no such.
    """
    if not isinstance(value, ast.Call):
        return None, None
    found = _by_argument(value)
    if found is None and isinstance(value.func, ast.Attribute):
        owner = ast.unparse(value.func.value).rpartition(".")[2]
        is_function = owner in FUNCTIONS
        found = _function(value, value.func) if is_function else _methods(value)
    return found or (None, None)


def _by_argument(call: ast.Call) -> tuple[ast.expr | None, ast.expr | None] | None:
    """Take ``inplace=True`` and ``out=x`` from a call."""
    for one in call.keywords:
        is_flag = one.arg == "inplace" and getattr(one.value, "value", None) is True
        if (is_flag and call.args) or one.arg == "out":
            kept = [other for other in call.keywords if other is not one]
            changed = call.args[0] if is_flag else one.value
            return changed, ast.Call(call.func, call.args, kept)
    return None


def _function(call: ast.Call, function: ast.Attribute) -> tuple[ast.expr, ast.expr | None] | None:
    """Write ``F.relu_(h)`` as ``F.relu(h)``."""
    if not _is_in_place(function.attr) or not call.args:
        return None
    home, name = FUNCTIONS[ast.unparse(function.value).rpartition(".")[2]], function.attr[:-1]
    made = ast.Call(ast.Attribute(function.value, name), call.args, call.keywords)
    return call.args[0], made if hasattr(home, name) else None


def _methods(call: ast.Call) -> tuple[ast.expr, ast.expr | None] | None:
    """Write ``h.mul_(2).add_(1)`` as ``h.mul(2).add(1)``."""
    calls: list[tuple[str, ast.Call]] = []
    inner: ast.expr = call
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
        if not _is_in_place(inner.func.attr):
            return None
        calls.append((inner.func.attr[:-1], inner))
        inner = inner.func.value
    if not calls or not isinstance(inner, ast.Name | ast.Attribute | ast.Subscript):
        return None
    return inner, _chained(inner, calls[::-1])


def _chained(value: ast.expr, calls: Sequence[tuple[str, ast.Call]]) -> ast.expr | None:
    for name, call in calls:
        if not hasattr(torch.Tensor, name):
            return None
        value = ast.Call(ast.Attribute(value, name), call.args, call.keywords)
    return value


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_") and name != "requires_grad_"
