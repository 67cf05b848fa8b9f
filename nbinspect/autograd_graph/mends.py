"""The user's own line, written so that it does no harm."""

from __future__ import annotations

import ast


def without(text: str, piece: str, ending: str) -> str:
    """Take ``.detach()`` or the like from the end of a piece of a line; "" if it is not there."""
    if not piece.endswith(ending) or piece not in text or text.endswith(":"):
        return ""
    return text.replace(piece, piece.removesuffix(ending), 1)


def sets_to_itself(text: str) -> bool:
    """Say whether a line does nothing but give a name what it has already: ``h = h``."""
    statement = only_statement(text)
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    value = getattr(statement, "value", None)
    if not targets or value is None:
        return False
    if _ends(value) == "requires_grad_":
        value = value.func.value
    return all(ast.unparse(one) == ast.unparse(value) for one in targets)


def only_statement(text: str) -> ast.stmt | None:
    """Parse a line that is one statement, also if it is from inside of a function; else None."""
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


MAKERS = frozenset(
    {"tensor", "as_tensor", "asarray", "from_numpy", "new_tensor", "Tensor", "FloatTensor"}
    | {"DoubleTensor", "HalfTensor", "BFloat16Tensor"}
)
"""Functions that make a tensor of Python's or NumPy's numbers."""
NUMBERS = frozenset({"item", "tolist", "numpy"})
AWAY = NUMBERS | {"detach", "cpu"}
ARITHMETIC = frozenset({"add", "sub", "mul", "div", "true_divide", "pow", "fill_", "copy_"})


def takes_a_number(op: str) -> bool:
    """Say whether an operation takes a tensor as well where it took a number."""
    name = op.removeprefix("aten::")
    return name in ARITHMETIC or name.removesuffix("_") in ARITHMETIC


def sets_an_item(text: str) -> bool:
    """Say whether a line is as ``h[i] = v``, which takes a tensor as well as a number."""
    statement = only_statement(text)
    return isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript)


def is_constant(piece: str) -> bool:
    """Say whether a call's numbers are all written out: ``torch.tensor([1.0, 2.0])``."""
    try:
        call = ast.parse(piece, mode="eval").body
    except (SyntaxError, ValueError):
        return False
    if not isinstance(call, ast.Call):
        return False
    return not any(isinstance(n, ast.Name) for one in call.args for n in ast.walk(one))


def is_written(piece: str, number: float) -> bool:
    """Say whether a number stands in a piece of code."""
    try:
        tree = ast.parse(piece)
    except (SyntaxError, ValueError):
        return False
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return any(isinstance(one, int | float) and abs(one) == abs(number) for one in values)


def kept_in_torch(text: str, piece: str) -> str:
    """Write a line so that it makes no Python numbers or arrays of a tensor on the way; "" if unsure.

    ``torch.tensor([v.item() for v in values])`` becomes ``torch.stack([v for v in values])``, and
    ``torch.from_numpy(h.detach().numpy() * 2)`` becomes ``h * 2``.
    """
    statement = only_statement(text)
    wanted = _dumped(piece)
    if statement is None or not wanted:
        return ""
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call) or not _is_maker(node):
            continue
        if wanted not in map(ast.dump, ast.walk(node)):
            continue
        kept = _kept_call(node)
        if kept is None or any(map(_leaves, ast.walk(kept))):
            return ""
        old, new = ast.unparse(node), ast.unparse(kept)
        written = ast.get_source_segment(text, node) or old
        is_inside = isinstance(kept, ast.BinOp) and node is not getattr(statement, "value", None)
        return text.replace(written, f"({new})" if is_inside else new, 1)
    return ""


def _dumped(piece: str) -> str:
    try:
        return ast.dump(ast.parse(piece, mode="eval").body)
    except (SyntaxError, ValueError):
        return ""


def _is_maker(call: ast.Call) -> bool:
    return (
        len(call.args) == 1 and getattr(call.func, "attr", getattr(call.func, "id", "")) in MAKERS
    )


def _kept_call(call: ast.Call) -> ast.expr | None:
    """Give what a call made of numbers, made of tensors instead."""
    kept = _kept(call.args[0])
    return _as_meant(call, kept) if kept is not None else None


def _as_meant(call: ast.Call, kept: ast.expr) -> ast.expr | None:
    """Give an expression the dtype and device that a call asks for, None if it asks for more."""
    meant = {one.arg for one in call.keywords}
    if not meant <= {"dtype", "device", "requires_grad"}:
        return None
    to = [one for one in call.keywords if one.arg in {"dtype", "device"}]
    if not to:
        return kept
    return ast.Call(ast.Attribute(kept, "to", ast.Load()), [], to)


def _kept(value: ast.expr) -> ast.expr | None:
    """Give an expression without the steps that lead out of torch, None if there is more to it."""
    if isinstance(value, ast.List | ast.Tuple):
        elements = [_kept(one) for one in value.elts]
        if not elements or any(one is None or _is_plain(one) for one in elements):
            return None
        return _stack(ast.List([one for one in elements if one is not None], ast.Load()))
    if isinstance(value, ast.ListComp):
        element = _kept(value.elt)
        plain = element is None or (_is_plain(element) and not _leaves(value.elt))
        if plain or element is None:
            return None
        if isinstance(element, ast.Name) and _only_lists(value, element.id):
            return _stack(value.generators[0].iter)
        return _stack(ast.ListComp(element, value.generators))
    if isinstance(value, ast.BinOp):
        left, right = _kept(value.left), _kept(value.right)
        ends = {_ends(side) for side in (value.left, value.right)}
        if left is None or right is None or "tolist" in ends:
            return None
        return ast.BinOp(left, value.op, right)
    if _leaves(value):
        return _stripped(value)
    return value if isinstance(value, ast.Constant) else None


def _only_lists(value: ast.ListComp, name: str) -> bool:
    """Say whether a comprehension gives just what it goes over, so that this does as well."""
    (one, *more) = value.generators
    return (
        not more
        and not one.ifs
        and isinstance(one.target, ast.Name)
        and one.target.id == name
        and isinstance(one.iter, ast.Name)
    )


def _is_plain(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant)


def _stack(values: ast.expr) -> ast.expr:
    torch = ast.Attribute(ast.Name("torch", ast.Load()), "stack", ast.Load())
    return ast.Call(torch, [values], [])


def _ends(value: ast.AST) -> str:
    """Name the method that an expression ends with, or the function that makes a number of it."""
    if not isinstance(value, ast.Call):
        return ""
    if isinstance(value.func, ast.Attribute) and not value.args:
        return value.func.attr
    if isinstance(value.func, ast.Name) and len(value.args) == 1 and value.func.id == "float":
        return "float"
    return ""


def _leaves(value: ast.AST) -> bool:
    return _ends(value) in {*NUMBERS, "float"}


def _stripped(value: ast.expr) -> ast.expr:
    while isinstance(value, ast.Call) and _ends(value) in {*AWAY, "float"}:
        value = value.args[0] if _ends(value) == "float" else value.func.value  # type: ignore[attr-defined]
    return value


def unwrapped(text: str, piece: str) -> str:
    """Write ``loss = torch.tensor(out, requires_grad=True)`` as ``loss = out``; "" if it is no such."""
    statement = only_statement(piece)
    call = getattr(statement, "value", None)
    if not isinstance(call, ast.Call) or not _is_maker(call) or piece not in text:
        return ""
    if isinstance(call.args[0], ast.List | ast.Tuple | ast.ListComp):
        return ""
    kept = _as_meant(call, call.args[0])
    return text.replace(piece, ast.unparse(kept), 1) if kept is not None else ""
