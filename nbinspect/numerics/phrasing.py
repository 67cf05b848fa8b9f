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


class _Finder(ast.NodeVisitor):
    """Finds the operand of a call or operator by the operation's name."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.found: list[ast.expr] = []

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr.strip("_") == self.base:
            module = isinstance(function.value, ast.Name) and function.value.id in _MODULES
            module = module or (
                isinstance(function.value, ast.Attribute)
                and not node.keywords
                and (function.value.attr in _MODULES)
            )
            if not module:
                self.found.append(function.value)
            elif node.args:
                self.found.append(node.args[0])
        elif isinstance(function, ast.Name) and function.id == self.base and node.args:
            self.found.append(node.args[0])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if self.base == "div" and isinstance(node.op, ast.Div):
            self.found.append(node.right)
        elif self.base == "pow" and isinstance(node.op, ast.Pow):
            self.found.append(node.left)
        self.generic_visit(node)


_MODULES = frozenset({"torch", "F", "functional", "special", "linalg", "nn", "np"})


def operand_text(line: str, base: str) -> str:
    """Give the expression that an operation works on in a line of the user's, "" if it is not clear.

    That is what stands before ``.sqrt()``, inside ``torch.log(...)``, or after ``/``.
    """
    for source in (line, line.rstrip(":") + ": pass", line + " pass"):
        try:
            tree = ast.parse(source.strip())
        except SyntaxError:
            continue
        finder = _Finder(_SAME_AS.get(base, base))
        finder.visit(tree)
        return ast.unparse(finder.found[0]) if len(finder.found) == 1 else ""
    return ""


def wrapped(text: str) -> str:
    """Put an expression in brackets where it would need them before a dot or after a sign."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return f"({text})"
    simple = isinstance(tree, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return text if simple else f"({text})"
