"""What is said of one holder: what it is, its bytes, its device."""

from __future__ import annotations

from typing import Any

from nbinspect import notebook
from nbinspect.heapgraph.objects import own_bytes
from nbinspect.referrers.origins import object_origin
from nbinspect.referrers.records import Link
from nbinspect.tensors import (
    class_name,
    describe,
    device_of,
    is_node,
    is_tensor,
    node_name,
    storage_bytes,
)


def link_to(value: Any, text: str, edge: str = "other", container: str = "") -> Link:
    """Describe an object that a chain or a picture leads through; call it inside `looking`.

    Args:
        value: the object.
        text: what it is called.
        edge: the kind of reference that leads to it, as in `Link.edge`.
        container: what it is an item of, as in `Link.container`.
    """
    size, own = None, None
    if is_tensor(value):
        kind, size = f"{class_name(type(value))} {describe(value)}", storage_bytes(value)
    elif is_node(value):
        kind = node_name(value)
    else:
        kind, own = class_name(type(value)), own_bytes(value)
    device = device_of(value)
    return Link(text, edge, kind, size, id(value), text, container, device=device, own_bytes=own)


def link_to_call(frame: notebook.RunningFrame) -> Link:
    """Describe a call that has not returned."""
    origin = object_origin(frame.code)
    return Link(frame.label, "other", "frame", cell=origin.cell, origin=origin.text)
