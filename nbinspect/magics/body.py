"""Compiles the rest of a cell, for a cell magic, so that it behaves as a cell of its own does."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from nbinspect.magics.showing import Shell


@dataclass(frozen=True, slots=True)
class Body:
    """Compiled lines.

    Attributes:
        statements: all but the last expression.
        value: the last expression, None if the last line is a statement or ends with ``;``.
        namespace: the user's.
    """

    statements: CodeType
    value: CodeType | None
    namespace: dict[str, Any]

    def run(self) -> Any:
        """Run them, and return the value of the last expression."""
        __tracebackhide__ = True
        exec(self.statements, self.namespace)
        return None if self.value is None else eval(self.value, self.namespace)


def compile_body(shell: Shell, lines: Sequence[str], raw_cell: str, n_above: int) -> Body:
    """Compile `lines` under the number and with the line numbers of the cell they come from.

    Args:
        shell: runs the cell.
        lines: the rest of the cell.
        raw_cell: the whole cell, which tells how many lines were above.
        n_above: how many there were, if the cell does not tell.

    Raises:
        SyntaxError: in the user's lines.
    """
    __tracebackhide__ = True
    source = shell.transform_cell("".join(_in_place(lines, raw_cell, n_above)))
    file = shell.compile.cache(source, shell.displayhook.prompt_count, raw_code=source)
    tree = shell.transform_ast(shell.compile.ast_parse(source, filename=file))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    if last is not None and shell.displayhook.semicolon_at_end_of_expression(source):
        tree.body.append(last)
        last = None
    value = last and shell.compile(ast.Expression(last.value), file, "eval")
    return Body(shell.compile(tree, file, "exec"), value, shell.user_ns)


def _in_place(lines: Sequence[str], raw_cell: str, n_above: int) -> list[str]:
    """Put comments above `lines` for what stood there, so that line numbers are the cell's own."""
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%"):  # the next magic must stay on the first line
        return list(lines)
    whole = raw_cell.strip().splitlines()
    rest = "".join(lines).rstrip().splitlines()
    if rest and whole[-len(rest) :] == rest:
        n_above = len(whole) - len(rest)
    indent = first[: len(first) - len(first.lstrip())]  # dedented together with the rest
    return [f"{indent}#\n"] * n_above + list(lines)
