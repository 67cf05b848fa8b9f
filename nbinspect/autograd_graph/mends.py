"""The user's own line, written so that it does no harm."""

from __future__ import annotations

import ast


def out_of_place(text: str) -> str:
    """Write ``h += 1`` as ``h = h + 1`` and ``h.relu_()`` as ``h = h.relu()``; "" where unsure."""
    statement = _only_statement(text)
    if isinstance(statement, ast.AugAssign):
        target = ast.unparse(statement.target)
        operation = ast.BinOp(statement.target, statement.op, statement.value)
        return f"{target} = {ast.unparse(operation)}"
    if not isinstance(statement, ast.Expr | ast.Assign):
        return ""
    call = statement.value
    is_method = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    if not is_method:
        return ""
    function = call.func  # type: ignore[attr-defined]  # it is a call of an attribute
    name = function.attr
    if not name.endswith("_") or name.startswith("_") or name == "requires_grad_":
        return ""
    owner = ast.unparse(function.value)
    arguments = ast.unparse(call).removeprefix(f"{owner}.{name}")
    return f"{owner} = {owner}.{name.removesuffix('_')}{arguments}"


def without(text: str, piece: str, ending: str) -> str:
    """Take ``.detach()`` or the like from the end of a piece of a line; "" if it is not there."""
    if not piece.endswith(ending) or piece not in text or text.endswith(":"):
        return ""
    return text.replace(piece, piece.removesuffix(ending), 1)


def _only_statement(text: str) -> ast.stmt | None:
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):  # part of a longer statement
        return None
    return body[0] if len(body) == 1 else None


def enclosing_no_grad(source: str, lineno: int) -> int | None:
    """Give the line of the innermost ``with torch.no_grad()`` or decorator around a line."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a magic's line, an await outside of a function
        return None
    best: int | None = None
    for node in ast.walk(tree):
        last = getattr(node, "end_lineno", None)
        if last is None or not getattr(node, "lineno", 0) <= lineno <= last:
            continue
        around: list[ast.expr] = []
        if isinstance(node, ast.With | ast.AsyncWith):
            around = [item.context_expr for item in node.items]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            around = node.decorator_list
        for one in around:
            words = {getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(one)}
            if not words.isdisjoint(("no_grad", "inference_mode", "set_grad_enabled")):
                best = max(best or 0, one.lineno)
    return best
