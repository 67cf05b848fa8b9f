"""The notebook around us: its shell, the running cell, and outputs that can be replaced."""

from __future__ import annotations

import sys
from typing import Any


def shell() -> Any:
    """Give IPython's shell, None outside IPython."""
    from IPython.core.getipython import get_ipython

    return get_ipython()


def in_notebook() -> bool:
    """Say whether there is a page: a terminal IPython and a script have none."""
    return getattr(shell(), "kernel", None) is not None


def in_colab() -> bool:
    """Say whether the page is Colab's, which no message from a thread reaches."""
    return "google.colab" in sys.modules


def cell_id() -> str:
    """Give the front end's name of the running cell, "" if it has none."""
    try:
        return str(shell().get_parent()["metadata"].get("cellId", ""))
    except (AttributeError, KeyError, TypeError):
        return ""


def publish(data: dict[str, Any], display_id: str, *, update: bool = False) -> None:
    """Put an output under the running cell, or replace the one of that `display_id`."""
    if in_notebook():
        shell().display_pub.publish(
            data=data, metadata={}, transient={"display_id": display_id}, update=update
        )
