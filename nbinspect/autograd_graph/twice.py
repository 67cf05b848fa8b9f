"""A backward that came to a graph whose saved tensors an earlier one has released."""

from __future__ import annotations

import ast
from itertools import islice
from types import TracebackType
from typing import Any

from nbinspect.autograd_graph.records import GraphFinding
from nbinspect.autograd_graph.walk import released, walk
from nbinspect.autograd_graph.watched import Watched
from nbinspect.records import SourceLine
from nbinspect.tensors import looking

SAID = "backward through the graph a second time"
MOST_GRAPHS = 16  # of earlier backwards that are compared, the latest first
KEEPING = ("retain_graph", "create_graph")


def went_twice(
    seen: Watched, error: BaseException | None, traceback: TracebackType | None
) -> GraphFinding | None:
    """Find which backward released what the last one needed.

    Args:
        seen: the watched cell, before it is settled.
        error: what ended the cell.
        traceback: where.

    Returns:
        The finding; None where the last backward that was heard did not raise this error.

    Cost: a walk of the last graph, and of those of up to 16 backwards before it.
    Blind to: a backward with a gradient of its own, and the graph of a tensor that is gone.
    """
    if type(error) is not RuntimeError or SAID not in str(error) or not seen.roots:
        return None
    ref, place = seen.roots[-1]
    root = ref()
    if root is None or place < 0 or not _is_in(traceback, seen.places[place]):
        return None
    now, before = _said(seen, place), _before(seen, root)
    if before is None:
        went = f"A backward before {_called(now)} went through this graph"
        return GraphFinding("TWICE", f"{went} {RELEASED}. {ONCE}", "", (), now[0])
    then = _said(seen, before)
    again = "comes there again" if then == now else f"{_called(now)} comes there again"
    sentence = f"{_called(then)} went through this graph {RELEASED}, and {again}. {ONCE}"
    return GraphFinding("TWICE", sentence, retaining(then[0].text), (), then[0])


RELEASED = "and released what it had saved"
ONCE = (
    "Go backward once, from the sum if there are several losses, or give the first one "
    "`retain_graph=True`."
)


def _before(seen: Watched, root: Any) -> int | None:
    """Give the place of the latest earlier backward that released a part of the same graph."""
    earlier = [one for one in reversed(seen.roots) if one[1] >= 0][1:]
    with looking():
        own = walk(root.grad_fn)
        freed = {id(own.nodes[n]) for n in released(own)}
        try:
            for ref, place in islice(earlier, MOST_GRAPHS):
                tensor = ref()
                if tensor is None or _keeps(seen.at(place)[0].text):
                    continue
                other = walk(tensor.grad_fn)
                is_shared = any(id(node) in freed for node in other.nodes)
                other.close()
                if is_shared:
                    return place
        finally:
            own.close()
    return None


def _is_in(traceback: TracebackType | None, place: tuple[Any, int, int]) -> bool:
    """Say whether an error went through a place in the user's code."""
    code, _, instruction = place
    while traceback is not None:
        if traceback.tb_frame.f_code is code and traceback.tb_lasti == instruction:
            return True
        traceback = traceback.tb_next
    return False


def _said(seen: Watched, place: int) -> tuple[SourceLine, str]:
    line, piece, _ = seen.at(place)
    return line, piece or line.text


def _called(said: tuple[SourceLine, str]) -> str:
    line, piece = said
    return f"`{piece}` in {line.label}"


def _backward_call(text: str) -> ast.Call | None:
    """Give the call of a line that is nothing but a ``backward``."""
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    is_method = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    is_backward = is_method and call.func.attr == "backward"  # type: ignore[attr-defined]
    return call if is_backward and isinstance(call, ast.Call) else None


def _keeps(text: str) -> bool:
    return any(f"{word}=True" in text.replace(" ", "") for word in KEEPING)


def retaining(text: str) -> str:
    """Write a line's ``backward()`` so that it keeps what is saved, "" where unsure."""
    call = _backward_call(text)
    if call is None or any(one.arg in {*KEEPING, None} for one in call.keywords):
        return ""
    call.keywords.append(ast.keyword("retain_graph", ast.Constant(value=True)))
    return ast.unparse(call)
