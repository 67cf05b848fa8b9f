"""Lines of code that let go of what one name holds, for the census and the reference search."""

from __future__ import annotations

import re
import sys

_WORD = r"[^\W\d]\w*"
_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_KEY = rf"(?:-?\d+(?:\.\d+)?|{_TEXT}|torch\.device\('[^']*'\)|{_WORD}(?:\.{_WORD})*)"
_KEYS = rf"{_KEY}(?:, {_KEY})*"
_PATH = rf"{_WORD}(?:\.{_WORD}|\[(?:{_KEYS}|\({_KEYS},?\))\])*"
_CALL = rf"type\({_PATH}\)|logging\.getLogger\((?:{_TEXT})?\)|get_ipython\(\)"
NAME = re.compile(rf"(?:(?:{_CALL})\.)?{_PATH}")


def is_assignable(name: str) -> bool:
    """Say whether a holder's name is code that can stand left of an equals sign."""
    return NAME.fullmatch(name) is not None


def forget_output(number: str) -> str:
    """Give the line that makes IPython forget ``Out[number]``; ``del Out[n]`` is not enough."""
    # Of a cell's last expression the value would be displayed, and so be kept again.
    return f"Out.pop({number}, None); get_ipython().del_var('_{number}')"


def empty_last_error(name: str) -> str:
    """Give the line that empties the last error, or one that it leads to.

    Args:
        name: of what holds the calls, e.g. ``sys.last_value.__context__``, ``sys.last_traceback``.
    """
    error, args, _ = name.partition(".args")
    if args:
        return f"import sys; {error}.args = ()"
    is_first = not re.fullmatch(r"sys\.last_(value|exc)[.\[].*", error)
    if is_first and getattr(sys, "last_traceback", None) is not None:
        return "import sys; sys.last_traceback.tb_next = None"  # the traceback that all share
    return f"import sys; {error}.__traceback__ = None"


def without_graphs(whole: str, container: str) -> str:
    """Give the line that cuts the graphs off the tensors of a container, "" where there is none.

    Args:
        whole: the container's name.
        container: what it is, as `Label.container` says it.
    """
    item = "one.detach()"
    if container.startswith("mixed "):
        item = "one.detach() if hasattr(one, 'detach') else one"
    match container.removeprefix("mixed "):
        case "list":
            return f"{whole}[:] = [{item} for one in {whole}]"
        case "dict":
            return f"{whole}.update({{key: {item} for key, one in {whole}.items()}})"
        case "deque":
            return f"{whole} = type({whole})([{item} for one in {whole}], {whole}.maxlen)"
    return ""
