"""Whether what one line of code makes goes into another, by the names in the code."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator

MUTATING = frozenset({"append", "add", "extend", "insert", "appendleft", "update", "setdefault"})
SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


def flows(source: str, first: int, second: int) -> bool:
    """Say whether the code of line `second` uses what line `first` made, within one function.

    Blind to: names that are made anew in between, and ways through functions' results.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a magic's line, an await outside of a function
        return first == second
    scope = _scope(tree, first)
    if scope is not _scope(tree, second):
        return False
    begin, end = _statement(scope, first), _statement(scope, second)
    if begin is None or end is None or begin is end:
        return begin is end and begin is not None
    made = _made(begin)
    statements = [node for node in _own(scope) if isinstance(node, (*SIMPLE, ast.For))]
    grows = bool(made)
    while grows:
        grows = False
        for one in statements:
            new = _made(one) - made
            if new and not made.isdisjoint(_used(one)):
                made |= new
                grows = True
    return not made.isdisjoint(_used(end))


def _scope(tree: ast.AST, line: int) -> ast.AST:
    """Give the innermost function around a line, else the module."""
    found = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _spans(node, line):
            found = node  # outer ones come first
    return found


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function or module, but not in the functions inside of it."""
    todo = deque([scope])
    while todo:
        for node in ast.iter_child_nodes(todo.popleft()):
            yield node
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                todo.append(node)


def _statement(scope: ast.AST, line: int) -> ast.stmt | None:
    found = None
    for node in _own(scope):
        if isinstance(node, ast.stmt) and _spans(node, line):
            found = node
    return found


def _spans(node: ast.AST, line: int) -> bool:
    last = getattr(node, "end_lineno", None)
    return last is not None and getattr(node, "lineno", 0) <= line <= last


def _made(statement: ast.AST) -> set[str]:
    """Name what a statement sets or adds to."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign | ast.For):
        targets = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr in MUTATING:
            targets = [function.value]
    return {name for target in targets for name in _names(target)}


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _names(one)
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _names(target.value)
    elif isinstance(target, ast.Name | ast.Attribute):
        yield ast.unparse(target)


def _used(statement: ast.AST) -> set[str]:
    """Name what a statement reads; of a loop, what it goes over."""
    where = statement.iter if isinstance(statement, ast.For) else statement
    return {ast.unparse(n) for n in ast.walk(where) if isinstance(n, ast.Name | ast.Attribute)}
