"""What a label and a step are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Label:
    """The name of an object, as reached along one path.

    Attributes:
        text: what is read.
        context: how its own parts are named: "" by its type; ``names``: a namespace;
            ``attributes``: an instance's dictionary; ``class attributes``: a class's; ``module attributes``: that of an
            ``nn.Module``; ``members``: its ``_parameters`` and the like; ``hooks``: a dictionary
            of hooks; ``annotations``: those of a function; ``closure``: a function's cells; ``defaults``: its defaults; ``elements``: what
            an iterator goes through; ``threads``: a thread-local's dictionaries; ``a thread's
            attributes``: one of those, and which thread's is not known; ``read-only``: what
            a proxy or view shows; ``unseen``: what of others' code has no names worth reading.
        extra: names of a closure's cells or of defaults, or of the attribute that is a dictionary
            of hooks; of attributes: those that are spelled otherwise, each before its spelling.
        joint: what stands before the name of an attribute.
        container: the built-in type of the container that it is an item of, "" if of none;
            ``mixed list`` if some of the items are no tensors.
        code: what names of its parts begin with, where that is not `text`: ``list(seen)[0]`` for an
            element of a set.
    """

    text: str
    context: str = ""
    extra: tuple[str, ...] = ()
    joint: str = "."
    container: str = ""
    code: str = ""


class Step(NamedTuple):
    """How one reference is read: the kind of edge, and the label of the object it leads to."""

    edge: str
    label: Label
