"""Mends that are run one after the other: none may fail because an earlier one has done its work."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from nbinspect.leaks.records import LETS_GO, Growth

PARTS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def in_order(found: Iterable[Growth]) -> Iterator[Growth]:
    """Give growths whose lines of code are safe in this order.

    Where an earlier line takes away what a later one needs, the later growth has no line of its own:
    its mend names the earlier one, which lets go of both.
    """
    gone: list[tuple[str, str]] = []
    for one in found:
        names = _names(one.code)
        before = next((code for name, code in gone if name in names), None)
        if before is None:
            gone += [(name, one.code) for name in _removed(one.code)]
            yield one
        else:
            mend = one.mend.removesuffix(LETS_GO.format(one.code))
            yield replace(one, code="", mend=f"{mend} `{before}` lets go of this too.")


def _names(code: str) -> set[str]:
    """List what a line of code refers to, with ``x[`` for any item of ``x``."""
    parts = [one for one in ast.walk(_parsed(code)) if isinstance(one, PARTS)]
    items = {f"{ast.unparse(one.value)}[" for one in parts if isinstance(one, ast.Subscript)}
    return items | {ast.unparse(one) for one in parts}


def _removed(code: str) -> Iterator[str]:
    """List what is no longer there after a line of code, as `_names` does."""
    for one in ast.walk(_parsed(code)):
        if isinstance(one, ast.Delete):
            yield from map(_place, one.targets)
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
            if one.func.attr in {"clear", "popitem"}:
                yield f"{ast.unparse(one.func.value)}["
            elif one.func.attr == "pop":
                yield ast.unparse(one)
                key = one.args[0] if one.args else ast.Constant(-1)
                yield _place(ast.Subscript(one.func.value, key))


def _place(target: ast.expr) -> str:
    """Name what a ``del`` takes away; of a list all items move up."""
    at = target.slice if isinstance(target, ast.Subscript) else None
    if isinstance(target, ast.Subscript) and isinstance(at, ast.Constant) and type(at.value) is int:
        return f"{ast.unparse(target.value)}["
    return ast.unparse(target)


def _parsed(code: str) -> ast.AST:
    try:
        return ast.parse(code)
    except SyntaxError:  # a magic
        return ast.Module([], [])
