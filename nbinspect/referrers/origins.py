"""Which cell made an object, where that can be known."""

from __future__ import annotations

import re
import types
from collections import deque
from typing import Any, NamedTuple

from nbinspect import _torch, cell_history, notebook
from nbinspect.heapgraph.go_betweens import SUSPENDED
from nbinspect.heapgraph.objects import isinstance_of
from nbinspect.tensors import class_dict, class_name, is_node, is_tensor

CALLS = (*SUSPENDED, types.FrameType, types.TracebackType)
MOST_BEFORE = 64  # nodes looked at to see whether they are of one thread


class Origin(NamedTuple):
    """Where an object is from.

    Attributes:
        cell: number of the cell, None where it is not known or a file.
        text: the whole as one phrase, "" where nothing is known.
    """

    cell: int | None = None
    text: str = ""


def name_origin(label: str) -> Origin:
    """Say which cell assigned the variable that a holder's name begins with."""
    found = re.match(r"[^\W\d]\w*", label)
    cell = cell_history.bound_in(found[0]) if found else None
    if found is None or cell is None:
        return Origin()
    subject = "" if found[0] == label else f"{found[0]} was "
    return Origin(cell, f"{subject}last assigned in In[{cell}]")


def origin_of(value: Any, name: str = "") -> Origin:
    """Say which cell an object is from, as far as anything tells.

    Args:
        value: the object.
        name: how it is reached from one of the notebook's names, "" where it is not.
    """
    found = object_origin(value)
    if not found.text and name.isidentifier():
        found = name_origin(name)
    if not found.text:
        found = first_seen(value)
    return found if found.text or not name else name_origin(name)


def first_seen(value: Any) -> Origin:
    """Say in which cell an object came into sight, by what the names led to when each had ended."""
    cell = cell_history.seen_in(value)
    return Origin() if cell is None else Origin(cell, f"first seen in In[{cell}]")


def saved_by(node: Any) -> Origin:
    """Say in which cell an autograd node saved what it keeps."""
    cell = _number_says(node) if is_node(node) else None
    return Origin() if cell is None else Origin(cell, f"saved for backward in In[{cell}]")


def object_origin(value: Any) -> Origin:
    """Say which cell an object's own code, or torch's own note, says that it is from."""
    if is_tensor(value) or is_node(value):
        return _computed(value)
    code = _code_of(value)
    if code is None or code.co_filename.startswith("<"):  # made by a decorator, or by exec
        return Origin()
    if not notebook.is_users_file(code.co_filename):
        return Origin()
    where = notebook.source_line(code, code.co_firstlineno)
    if isinstance_of(value, type):  # whose own line is not known
        return Origin(where.cell, f"defined in {where.file or f'In[{where.cell}]'}")
    what = f"runs {code.co_name}(), " if isinstance_of(value, *CALLS) else ""
    return Origin(where.cell, f"{what}defined in {where.label}")


def _code_of(value: Any) -> types.CodeType | None:
    if isinstance_of(value, types.MethodType):
        value = value.__func__
    if isinstance_of(value, types.FunctionType):
        code: types.CodeType = value.__code__
        return code
    if isinstance_of(value, type):
        return _first_method(value)
    if isinstance_of(value, types.TracebackType):
        value = value.tb_frame
    if isinstance_of(value, types.FrameType):
        running: types.CodeType = value.f_code
        return running
    if isinstance_of(value, *SUSPENDED):
        prefix = {types.GeneratorType: "gi", types.CoroutineType: "cr"}.get(type(value), "ag")
        found: types.CodeType = getattr(value, f"{prefix}_code")
        return found
    return value if isinstance_of(value, types.CodeType) else None


def _first_method(kind: type) -> types.CodeType | None:
    """Give the code of a method that stands in a class's own body."""
    for name, one in list(class_dict(kind).items()):
        if type(one) is types.FunctionType and one.__code__.co_qualname.endswith(
            f"{class_name(kind)}.{name}"
        ):
            return one.__code__
    return None


def _computed(value: Any) -> Origin:
    """Read what `torch.autograd.set_detect_anomaly` noted when a node was made, or its number."""
    node = value if is_node(value) else _own_node(value)
    calls = _torch.made_at(node) if node is not None else []
    cells = [(cell, line) for name, line in calls if (cell := notebook.cell_number(name))]
    if cells:
        (cell, line), (inner, inner_line) = cells[0], cells[-1]
        by = "" if inner == cell else f", called by In[{cell}] line {line}"
        return Origin(cell, f"made in In[{inner}] line {inner_line}{by}")
    for name, line in reversed(calls):
        if not name.startswith("<") and notebook.is_users_file(name):
            return Origin(None, f"made in {notebook.short_path(name)}:{line}")
    cell, seen = _number_says(node), cell_history.seen_in(value)
    is_known = cell is not None and seen in {cell, None}  # else another thread may have made it
    return Origin(cell, f"made in In[{cell}]") if is_known else Origin()


def _own_node(tensor: Any) -> Any:
    """Give the node that made a tensor; one that was written to since has a later one."""
    return None if _torch.version(tensor) else tensor.grad_fn


def _number_says(node: Any) -> int | None:
    """Give the cell of a node's number, None if that is the count of another thread."""
    number = None if node is None else _torch.sequence_number(node)
    if number is None or not _counts_up(node):
        return None
    return cell_history.numbered_in(number)


def _counts_up(node: Any) -> bool:
    """Say whether a node and those before it are numbered as one thread does it."""
    todo, seen = deque([node]), {id(node)}
    while todo and len(seen) < MOST_BEFORE:
        one = todo.popleft()
        number = _torch.sequence_number(one)
        for before, _ in one.next_functions:
            if before is None or id(before) in seen:
                continue
            earlier = _torch.sequence_number(before)
            if earlier is not None and number is not None and earlier >= number:
                return False
            seen.add(id(before))
            todo.append(before)
    return True
