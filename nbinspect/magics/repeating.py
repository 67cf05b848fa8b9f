"""Runs a cell's body again and again, for watches that compare repetitions.

The tree of the cell becomes the body of a loop, so that it is still one plain cell: `await`, line
numbers, errors and interrupts are as they were, and the last repetition's value is shown.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from nbinspect.magics.showing import Shell

ROUNDS = "_nbinspect_rounds"
VALUE = "_nbinspect_value"
Rounds = Iterator[object]


class RepeatCell:
    """The tree transformation of a cell that is run by IPython itself."""

    def __init__(self, shell: Shell, take_rounds: Callable[[], Rounds | None]) -> None:
        self._shell = shell
        self._take_rounds = take_rounds

    def visit(self, tree: ast.AST) -> ast.AST:
        """Put the statements of a cell into a loop, if its watch wants repetitions."""
        if not isinstance(tree, ast.Module):  # what `%timeit` compiles
            return tree
        rounds = self._take_rounds()
        if rounds is None or not _compiles(self._shell, tree):
            return tree
        self._shell.user_ns[ROUNDS] = rounds
        return repeated(tree)


def forget(shell: Shell) -> None:
    """Take the loop's own names out of the user's."""
    for name in (ROUNDS, VALUE):
        shell.user_ns.pop(name, None)


def _compiles(shell: Shell, tree: ast.Module) -> bool:
    """Say whether a cell is right by itself: within a loop a stray ``break`` would be."""
    try:
        compile(tree, "<cell>", "exec", shell.compile.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (SyntaxError, ValueError):
        return False
    return True


def repeated(tree: ast.Module) -> ast.Module:
    """Give the module that runs all statements once for each item of `ROUNDS`."""
    n_first = sum(_is_future(one) for one in tree.body)
    first, body = tree.body[:n_first], tree.body[n_first:]
    last = body[-1] if body and isinstance(body[-1], ast.Expr) else None
    if last is not None:
        keep = ast.Assign([ast.Name(VALUE, ast.Store())], last.value)
        body[-1] = ast.copy_location(keep, last)
    names = ast.Name(VALUE, ast.Store()), ast.Name(ROUNDS, ast.Load())
    loop: ast.stmt = ast.For(*names, body or [ast.Pass()], [])
    end: list[ast.stmt] = []
    if body:
        loop = ast.copy_location(loop, body[0])
    if last is not None:
        end = [ast.copy_location(ast.Expr(ast.Name(VALUE, ast.Load())), last)]
    whole = ast.Module([*first, loop, *end], tree.type_ignores)
    return ast.fix_missing_locations(whole)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
