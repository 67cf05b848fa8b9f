"""Words for causes: numbers, counts, and the user's own expressions."""

from __future__ import annotations

import ast
import math

from nbinspect.numerics.records import Operand

_SAME_AS = {
    "true_divide": "div",
    "norm": "linalg_vector_norm",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "nll_loss_forward": "cross_entropy",
    "std_mean": "std",
    "var_mean": "var",
}


def number(value: float) -> str:
    """Write a number as one reads it: 65504, 0.001, 7.2e+38."""
    if math.isnan(value) or math.isinf(value):
        return str(value)
    if value == int(value) and abs(value) < 1e7:
        return str(int(value))
    return f"{value:.4g}"


def index_text(index: tuple[int, ...] | None) -> str:
    """Write an index as Python does, "" for none or for a scalar."""
    return f"[{', '.join(map(str, index))}]" if index else ""


def at_index(index: tuple[int, ...] | None) -> str:
    """Write ``, first at [0, 3]``."""
    return f", the first at {index_text(index)}" if index else ""


def count(n: int, operand: Operand, what: str) -> str:
    """Write ``4 of 16 values of `other` are 0``."""
    if operand.n_values == 1:
        return f"`{operand.name}` is {what}"
    verb = "is" if n == 1 else "are"
    return f"{n:,} of {operand.n_values:,} values of `{operand.name}` {verb} {what}"


_MODULES = frozenset({"torch", "F", "functional", "special", "linalg", "nn", "np"})
_TAKES_OPERATOR = {"div": ast.Div, "true_divide": ast.Div, "pow": ast.Pow, "reciprocal": ast.Div}
_RIGHT = frozenset({"div", "true_divide", "reciprocal"})


def operand_text(source: str, base: str) -> str:
    """Give the expression that an operation works on in a piece of the user's source.

    That is what stands before ``.sqrt()``, inside ``torch.log(...)``, or after ``/``.

    Args:
        source: an expression, or the line that holds it.
        base: the operation, e.g. ``sqrt``.

    Returns:
        "" if it is not clear.
    """
    for text in (source, source.rstrip(":") + ": pass", source + " pass"):
        try:
            tree = ast.parse(text.strip())
        except SyntaxError:
            continue
        found = [
            one for node in ast.walk(tree) if (one := _operand(node, _names(base))) is not None
        ]
        return ast.unparse(found[0]) if len(found) == 1 else ""
    return ""


def _names(base: str) -> frozenset[str]:
    """Give what an operation is called in the user's code."""
    return frozenset({base, _SAME_AS.get(base, base)})


def _operand(node: ast.AST, names: frozenset[str]) -> ast.expr | None:
    """Give what an operation works on, if this node is that operation."""
    divides = bool(names & _RIGHT)
    if isinstance(node, ast.BinOp):
        kind = next((_TAKES_OPERATOR[name] for name in names if name in _TAKES_OPERATOR), None)
        if kind is None or not isinstance(node.op, kind):
            return None
        return node.right if divides else node.left
    if not isinstance(node, ast.Call):
        return None
    function, args = node.func, node.args
    if isinstance(function, ast.Attribute) and function.attr.strip("_") in names:
        owner = function.value
        tail = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if tail not in _MODULES:
            args = [owner, *args]
    elif not (isinstance(function, ast.Name) and function.id in names):
        return None
    at = 1 if divides and "reciprocal" not in names else 0
    return args[at] if at < len(args) else None


def wrapped(text: str) -> str:
    """Put an expression in brackets where it would need them before a dot or after a sign."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return f"({text})"
    simple = isinstance(tree, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return text if simple else f"({text})"
