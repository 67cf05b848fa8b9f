"""Evaluates what the user named on a magic's line, and says in one line why it cannot."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nbinspect import notebook
from nbinspect.render.format import cut_end

MOST_CHARACTERS = 200  # of an error's message


def evaluate(expression: str) -> list[Any]:
    """Evaluate an expression once, among the notebook's names.

    Returns:
        The value, in a list that the caller empties: so this call keeps no reference to it.

    Raises:
        ValueError: it does not compile, names nothing, or raises; the message is one line.
    """
    try:
        code = compile(expression, "<refchain>", "eval")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{expression} is no expression: {_line(error)}") from None
    try:
        return [eval(code, notebook.user_namespace())]
    except NameError as error:
        raise ValueError(_unknown(error, expression)) from None
    except Exception as error:
        said = f"{expression} raises {type(error).__name__}: {_line(error)}"
        error.__traceback__ = None  # its frames hold what it was evaluated from
        raise ValueError(said) from None


class UsersError(Exception):
    """What the code that a magic runs for the user has raised; it goes on as it is.

    Attributes:
        error: the user's own.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def runner(expression: str) -> Callable[[], Any]:
    """Make a function that evaluates an expression among the notebook's names.

    Raises:
        ValueError: when made: it does not compile; when called: it begins with a name that there
            is not. Whatever else it raises comes as a `UsersError`.
    """
    try:
        code = compile(expression, "<expression>", "eval")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{expression} is no expression: {_line(error)}") from None

    def run() -> Any:
        __tracebackhide__ = True
        try:
            return eval(code, notebook.user_namespace())
        except NameError as error:
            if _depth(error) == 2:  # in the expression itself, not in what it calls
                raise ValueError(_unknown(error, expression)) from None
            raise UsersError(error) from None
        except Exception as error:
            raise UsersError(error) from None

    return run


@dataclass(slots=True)
class TakenApart:
    """A call whose parts have been evaluated, each once, in Python's order.

    Attributes:
        name: the function as it is written.
        function: what is called.
        args: its arguments, starred ones unpacked.
        kwargs: its keyword arguments.
        names: each argument as it is written, by position or keyword.
    """

    name: str
    function: Any
    args: list[Any]
    kwargs: dict[str, Any]
    names: dict[int | str, str]


def taken_apart(expression: str) -> TakenApart:
    """Evaluate the function and the arguments of a call, without calling it.

    Any other expression, ``(x @ w).tanh()`` say, is taken as a function of the variables in it that
    are tensors or hold them.

    Raises:
        ValueError: it is no expression, or a part of it raises; the message is one line.
    """
    if not expression.strip():
        raise ValueError("takes a call or a formula, e.g. %gradcheck f(x, w)")
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{expression} is no expression: {_line(error)}") from None
    if isinstance(tree, ast.Name | ast.Attribute | ast.Constant):
        raise ValueError("takes a call or a formula, e.g. %gradcheck f(x, w)")
    if not isinstance(tree, ast.Call) or _is_formula(tree):
        return _of_its_variables(tree)
    name = ast.unparse(tree.func)
    made = TakenApart(name, evaluate(name).pop(), [], {}, {})
    for node in tree.args:
        inner = node.value if isinstance(node, ast.Starred) else node
        text = _name_of(inner)
        values = evaluate(text)
        for n, value in enumerate(values.pop() if isinstance(node, ast.Starred) else values):
            starred = f"{text}[{n}]" if isinstance(node, ast.Starred) else text
            made.names[len(made.args)] = starred
            made.args.append(value)
    for keyword in tree.keywords:
        text = _name_of(keyword.value)
        value = evaluate(text).pop()
        for key, one in (value if keyword.arg is None else {keyword.arg: value}).items():
            made.names[key] = f"{text}[{key!r}]" if keyword.arg is None else text
            made.kwargs[key] = one
    return made


def _is_formula(call: ast.Call) -> bool:
    """Say whether a call works on what was computed in the same expression, as ``x.exp().sum()``."""
    from nbinspect.tensors import is_tensor

    if any(isinstance(one, ast.GeneratorExp) for one in call.args):
        return True
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    return of is not None and is_tensor(evaluate(ast.unparse(of)).pop())


def _of_its_variables(tree: ast.expr) -> TakenApart:
    from nbinspect.tensors import is_tensor

    text = ast.unparse(tree)
    known = notebook.user_namespace()
    used = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    names = [
        name
        for name in used
        if is_tensor(known.get(name)) or type(known.get(name)) in {list, tuple, dict}
    ]
    # The name of a file that counts as the user's own: so the variables are copied that it uses.
    code = compile(f"lambda {', '.join(names)}: ({text})", "<string>", "eval")
    function = eval(code, known)
    return TakenApart(text, function, [known[name] for name in names], {}, dict(enumerate(names)))


def _name_of(node: ast.expr) -> str:
    """Write an argument so that an index can follow: ``(2 * x)[0]``."""
    text = ast.unparse(node)
    whole = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant, ast.List, ast.Dict)
    return text if isinstance(node, whole) else f"({text})"


def _depth(error: BaseException) -> int:
    depth, at = 0, error.__traceback__
    while at is not None:
        depth, at = depth + 1, at.tb_next
    return depth


def _line(error: BaseException) -> str:
    try:
        return cut_end(" ".join(str(error).split()), MOST_CHARACTERS)
    except Exception:  # a message that cannot be printed
        return "no message"


def _unknown(error: NameError, expression: str) -> str:
    name = error.name or expression
    near = difflib.get_close_matches(name, [str(n) for n in notebook.user_namespace()], n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"there is no {name}{hint}"
