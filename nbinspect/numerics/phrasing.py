"""Words for causes: numbers, counts, and the user's own expressions."""

from __future__ import annotations

import ast
import dataclasses
import io
import math
import re
import tokenize

from nbinspect.blocks import Code, Span
from nbinspect.numerics.records import Operand
from nbinspect.render.format import count

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
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if value == int(value) and abs(value) < 1e7:
        return str(int(value))
    return f"{value:.4g}"


def index_text(index: tuple[int, ...] | None) -> str:
    """Write an index as Python does, "" for none or for a scalar."""
    return f"[{', '.join(map(str, index))}]" if index else ""


def at_index(index: tuple[int, ...] | None) -> str:
    """Write ``, first at [0, 3]``."""
    return f", the first at {index_text(index)}" if index else ""


def some_of(n: int, operand: Operand, what: str) -> str:
    """Write ``4 of 16 values of `other` are 0``."""
    name = name_of(operand)
    if operand.n_values == 1:
        return f"{name} is {what}"
    verb = "is" if n == 1 else "are"
    return f"{count(n)} of {count(operand.n_values)} values of {name} {verb} {what}"


def name_of(operand: Operand) -> str:
    """Name an operand inside a sentence: code in backticks, words as they are."""
    if operand.label in _WORDS:
        return f"the {operand.label}"
    return f"`{operand.words}`"


def function_name(node: str) -> str:
    """Give the forward operation of an autograd node: ``sqrt`` for ``SqrtBackward0``."""
    name, found, _ = node.partition("Backward")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() if found else ""


_DIVISION = {"self": "dividend", "other": "divisor"}
_PRODUCT = {"self": "left factor", "other": "right factor", "mat2": "right factor"}
_AFFINE = {
    "self": "bias",
    "mat1": "input",
    "mat2": "weight",
    "batch1": "left factor",
    "batch2": "right factor",
}
_ROLES = {
    "div": _DIVISION,
    "true_divide": _DIVISION,
    "mul": _PRODUCT,
    "mm": _PRODUCT,
    "bmm": _PRODUCT,
    "addmm": _AFFINE,
    "baddbmm": _AFFINE,
    "addcdiv": {"self": "parameter", "tensor1": "numerator", "tensor2": "denominator"},
    "nll_loss_forward": {"self": "log-probabilities", "target": "labels"},
}
_UNARY = {"self": "input", "result": "result"}
_WORDS = frozenset(word for roles in (*_ROLES.values(), _UNARY) for word in roles.values())


def labelled(found: tuple[Operand, ...], base: str, source: str) -> tuple[Operand, ...]:
    """Give operands the names that the reader knows them by.

    Args:
        found: the operands.
        base: the operation, e.g. ``div``.
        source: the user's expression that ran it; "" for an operation of backward.
    """
    main = "other" if base in _RIGHT and base != "reciprocal" else "self"
    text = operand_text(source, base) if source else ""
    roles = {**_UNARY, **_ROLES.get(base, {})}
    return tuple(
        dataclasses.replace(
            one, label=text if one.name == main and text else roles.get(one.name, "")
        )
        for one in found
    )


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
        if len(found) != 1:
            return ""
        return ast.get_source_segment(text.strip(), found[0]) or ast.unparse(found[0])
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


def rewritten(line: str, source: str, operand: str, better: str) -> str:
    """Put a better operand into the user's line.

    Args:
        line: the line.
        source: the expression in it that is meant, "" for the whole line.
        operand: the operand as it stands there.
        better: what to put there.

    Returns:
        The new line, "" if it is not clear where the operand stands.
    """
    line = _without_comment(line)
    place = source if source and line.count(source) == 1 else line
    if not operand or place.count(operand) != 1:
        return ""
    at = place.index(operand)
    if better.startswith("(") and place[at - 1 : at + len(operand) + 1] == f"({operand})":
        if place[: at - 1][-1:].isalnum() or place[: at - 1][-1:] in {"_", "]", ")"}:  # a call's
            better = better[1:-1] if _is_enclosed(better) else better
        else:
            operand = f"({operand})"  # its own brackets would be doubled
    new = line.replace(place, place.replace(operand, better))
    try:
        ast.parse(new)
    except SyntaxError:
        return ""
    return new


def _is_enclosed(text: str) -> bool:
    """Say whether the first bracket is closed by the last one."""
    depth = 0
    for at, one in enumerate(text):
        depth += (one == "(") - (one == ")")
        if not depth:
            return at == len(text) - 1
    return False


def _without_comment(line: str) -> str:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(line).readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):  # part of a longer statement
        return line
    start = next((one.start for one in tokens if one.type == tokenize.COMMENT), None)
    return line if start is None or start[0] > 1 else line[: start[1]].rstrip()


def is_code(text: str) -> bool:
    """Say whether a mend is a line to paste, rather than advice in words."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return not text.isidentifier()


def spans_of(text: str) -> tuple[Span, ...]:
    """Split a sentence at its backticks into words and code."""
    parts = text.split("`")
    return tuple(Code(one) if i % 2 else one for i, one in enumerate(parts) if one)
