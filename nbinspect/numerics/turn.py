"""One more turn of the user's loop: what to run again, and whether that may be done.

What is run is the user's own source: the body of the innermost loop around the line that runs
backward or steps the optimizer; without a loop, the function that was called under the watch; or
the statements since the last step. Names are copies, so nothing is rebound, and lists and dicts
that have a name are copied too, so that an append is not seen twice.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any

from nbinspect import notebook

_REFUSED_NAMES = frozenset({"input", "open", "exec", "eval", "breakpoint"})
_REFUSED_METHODS = frozenset(
    {
        "write", "writelines", "save", "savefig", "to_csv", "to_parquet", "add_scalar", "add_scalars",
        "add_histogram", "log_metrics", "log_artifact", "popleft", "send", "put", "commit",
        "all_reduce", "all_gather", "broadcast", "barrier", "reduce_scatter", "all_to_all",
    }
)  # fmt: skip
_REFUSED_MODULES = frozenset({"os", "shutil", "subprocess", "requests", "wandb", "mlflow", "dist"})
_CONTAINERS = (list, dict, set, deque)


class RefusedError(Exception):
    """The step cannot be run again; the message says why."""


class SideEffectError(RefusedError):
    """It could, but something would happen twice."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What to run again.

    Attributes:
        run: runs it.
        what: what it is, in words.
        depth: how many of the running functions are around the one it belongs to; None for the
            statements since the last step.
        first_line: its first line, 0 for a whole function.
    """

    run: Callable[[], Any]
    what: str
    depth: int | None = None
    first_line: int = 0


def one_turn(
    frames: Sequence[FrameType], base: CodeType | None, base_line: int, since: int, *, force: bool
) -> Turn:
    """Give what to run again.

    Args:
        frames: the running functions of the user's, the innermost first; the last is the cell, or
            the function that holds the `with` block.
        base: the code of the last one; None if it is not known.
        base_line: the line of the `with` statement in it, 0 for a cell.
        since: the line in it that ran at the last step, 0 for none.
        force: also where the user's side effects would be repeated.

    Raises:
        RefusedError: it cannot or must not be run again.
    """
    for i, frame in enumerate(frames):
        lowest = base_line if is_base(frame, base) else 0
        loop = _innermost_loop(frame, lowest)
        if loop is not None:
            turn = _statements(frame, loop.body, "the loop's body", force=force)
            return replace(turn, depth=len(frames) - 1 - i, first_line=loop.body[0].lineno)
        if is_base(frame, base):
            break
    functions = [frame for frame in frames if not is_base(frame, base)]
    if functions:
        return replace(_call(functions[-1], force=force), depth=len(frames) - len(functions))
    if not frames:
        raise RefusedError("the line that runs the step is in no file or cell of yours")
    return _statements(
        frames[-1], _segment(frames[-1], base_line, since), "the statements", force=force
    )


def is_base(frame: FrameType, base: CodeType | None) -> bool:
    """Say whether a frame is the cell, or the function that holds the `with` block."""
    return frame.f_code is base or (base is None and frame.f_code.co_name == "<module>")


def _tree(frame: FrameType) -> ast.Module:
    source = "".join(notebook.source_lines(frame.f_code.co_filename, frame.f_globals))
    if not source:
        raise RefusedError("its source is not to be had")
    try:
        return ast.parse(source)
    except SyntaxError:  # a cell with `!cmd` or a magic in it
        raise RefusedError("its source is no plain Python") from None


def _spans(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= (node.end_lineno or node.lineno))


def _innermost_loop(frame: FrameType, lowest: int) -> ast.For | ast.While | None:
    loops = [
        node
        for node in ast.walk(_tree(frame))
        if isinstance(node, ast.For | ast.While)
        and node.lineno > lowest
        and _spans(node, frame.f_lineno)
        and not _spans(node.iter if isinstance(node, ast.For) else node.test, frame.f_lineno)
        and _in_code(frame, node)
    ]
    return max(loops, key=lambda node: node.lineno, default=None)


def _in_code(frame: FrameType, node: ast.stmt) -> bool:
    """Say whether a statement belongs to the running function, not to the one around it."""
    return node.lineno >= frame.f_code.co_firstlineno


def _segment(frame: FrameType, base_line: int, since: int) -> list[ast.stmt]:
    """Give the statements of a cell or `with` block that ran since the last step."""
    tree = _tree(frame)
    body = tree.body
    if base_line:
        blocks = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.With | ast.AsyncWith)
            and _spans(node, base_line)
            and _spans(node, frame.f_lineno)
        ]
        if not blocks:
            raise RefusedError("there is no loop around it")
        body = max(blocks, key=lambda node: node.lineno).body
    return [one for one in body if one.lineno > since and one.lineno <= frame.f_lineno]


def _statements(frame: FrameType, body: list[ast.stmt], what: str, *, force: bool) -> Turn:
    ran = [one for one in body if one.lineno <= frame.f_lineno]
    _must_run_once(ran)
    if not force:
        _must_be_harmless(ran, frame.f_lineno)
    once = ast.parse("for _once in (0,): pass")  # a loop, so that break and continue work
    once.body[0].body = body  # type: ignore[attr-defined]  # it is a loop
    code = compile(once, frame.f_code.co_filename, "exec")
    names = _copies({**frame.f_globals, **notebook.frame_locals(frame)}, ran)
    first, last = body[0].lineno, frame.f_lineno

    def run() -> None:
        exec(code, names)

    return Turn(run, f"{what}, lines {first} to {last}" if first != last else f"line {first}")


def _call(frame: FrameType, *, force: bool) -> Turn:
    """Run a function again, with the arguments that it has."""
    code = frame.f_code
    if code.co_flags & 0x2A0:  # generator, coroutine, async generator
        raise RefusedError(f"{code.co_name} is a generator or a coroutine")
    definition = _definition(frame)
    if definition is not None and not force:
        _must_be_harmless(
            [one for one in definition.body if one.lineno <= frame.f_lineno], frame.f_lineno
        )
    names = notebook.frame_locals(frame)
    n_positional, n_named = code.co_argcount, code.co_kwonlyargcount
    given = code.co_varnames[: n_positional + n_named]
    values = {name: _copy(names[name]) for name in given if name in names}
    if len(values) < len(given):
        raise RefusedError(f"{code.co_name} has deleted an argument of its own")
    rest = list(code.co_varnames[n_positional + n_named :])
    more = names.get(rest.pop(0), ()) if code.co_flags & 0x04 else ()
    by_name = names.get(rest.pop(0), {}) if code.co_flags & 0x08 else {}
    cells = tuple(
        CellType(_copy(names[name])) if name in names else CellType() for name in code.co_freevars
    )
    function = FunctionType(code, frame.f_globals, code.co_name, None, cells)
    positional = [values[name] for name in given[:n_positional]]
    named = {name: values[name] for name in given[n_positional:]}

    def run() -> None:
        function(*positional, *more, **named, **by_name)

    return Turn(run, f"{code.co_name}()")


def _definition(frame: FrameType) -> ast.FunctionDef | None:
    try:
        tree = _tree(frame)
    except RefusedError:
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name == frame.f_code.co_name
        and _spans(node, frame.f_lineno)
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def _must_run_once(body: list[ast.stmt]) -> None:
    for node in (node for one in body for node in _own_nodes(one)):
        if isinstance(
            node,
            ast.Yield | ast.YieldFrom | ast.Await | ast.Nonlocal | ast.AsyncFor | ast.AsyncWith,
        ):
            raise RefusedError(
                f"line {node.lineno} is `{ast.unparse(node)}`, which runs only in its place"
            )


def _own_nodes(statement: ast.stmt) -> Iterator[Any]:
    """Yield the nodes of a statement, but not those of functions that it defines."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            todo.extend(ast.iter_child_nodes(node))


def _must_be_harmless(body: list[ast.stmt], last: int) -> None:
    """Look for what must not happen twice, in the lines up to the last one that ran."""
    for node in (node for one in body for node in _own_nodes(one)):
        if isinstance(node, ast.Call) and node.lineno <= last and _is_side_effect(node):
            raise SideEffectError(
                f"line {node.lineno} has `{ast.unparse(node)[:60]}`, which would happen twice"
            )


def _is_side_effect(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        advances = function.id in {"next", "anext"} and not isinstance(
            call.args[0] if call.args else None, ast.Call
        )
        return advances or function.id in _REFUSED_NAMES
    if isinstance(function, ast.Attribute):
        owner = function.value
        module = isinstance(owner, ast.Name) and owner.id in _REFUSED_MODULES
        return module or function.attr in _REFUSED_METHODS or function.attr == "__next__"
    return False


def _copies(names: dict[str, Any], body: list[ast.stmt]) -> dict[str, Any]:
    """Copy the lists, dicts and sets that the statements name."""
    used = {node.id for one in body for node in ast.walk(one) if isinstance(node, ast.Name)}
    return {name: _copy(value) if name in used else value for name, value in names.items()}


def _copy(value: Any) -> Any:
    return value.copy() if type(value) in _CONTAINERS else value
