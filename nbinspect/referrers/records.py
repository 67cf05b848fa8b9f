"""What a reference search returns: plain values that need no torch to be read or shown."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any

from nbinspect.blocks import View
from nbinspect.records import Record

if typing.TYPE_CHECKING:
    import graphviz


@dataclass(frozen=True, slots=True)
class Link:
    """One holder on the way from a root to the object, with how it holds the next.

    Attributes:
        label: what is read, e.g. ``losses[0]``, ``grad_fn SumBackward0``, ``saved self``.
        edge: the kind of reference that leads here: attribute, item, cell, frame, generator,
            exception, saved_tensor, variable, grad, base, hook, ndarray, capsule or other.
        type_name: the type of the object that the label names.
        size_bytes: bytes of its storage, for a tensor.
        key: its id when it was seen; a later object may have the same.
        droppable: the label, less what cannot be taken out of its holder: an item of a tuple.
        container: the built-in type of what the label is an item of, "" if of none; ``mixed list``
            if some of its items are no tensors.
        retained_bytes: bytes of the storages that would be freed if it went; None if not known.
        cell: number of the cell that it is from: that bound the variable that the label begins
            with, that its code was typed into, that computed it; None if that is not known.
        origin: which of these, in words, or a file and line; "" if it is not known.
        device: of a tensor, as ``str(torch.device)``; "" for anything else.
        own_bytes: of anything but a tensor: its own bytes and its attributes' dictionary's, without
            what they hold; None if they are not known, as an autograd node's are not.
    """

    label: str
    edge: str
    type_name: str
    size_bytes: int | None = None
    key: int = 0
    droppable: str = ""
    container: str = ""
    retained_bytes: int | None = None
    cell: int | None = None
    origin: str = ""
    device: str = ""
    own_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """References from a root down to the object.

    Attributes:
        root: where it begins: a variable, ``Out[4]``, ``sys.last_value``, a running call, a cycle;
            ``unnamed partial`` if what holds the first link cannot be seen.
        links: from the root to the object, which the last one names.
        steps: (id, type name) of every object on the way, those too that no link names: first the
            root's own, last the object. Of a very long way only the end; no more than 64.
    """

    root: str
    links: tuple[Link, ...]
    steps: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        return " -> ".join(link.label for link in self.links)


@dataclass(frozen=True, slots=True)
class ReferenceReport(Record):
    """Why an object is alive.

    Attributes:
        name: what was asked about, as the user wrote it.
        description: what it is, e.g. ``64x256 float32, 64.0 KiB``.
        chains: the shortest first.
        n_references: references to it, from Python and from C++, the search's own left out.
        n_explained: those whose holder was found.
        complete: all are explained, and the search was not cut short.
        verdict: what is not explained, or what kind of cycle it is; "" if there is nothing to say.
        collectable: only a cycle keeps it, and ``gc.collect()`` would free it.
        uncollectable: only a cycle through C++ keeps it, which no collector frees.
        mend: how to let go: a sentence with a line of code in backquotes.
        code: that line alone, "" if there is none.
        size_bytes: bytes of its storage, for a tensor.
        notes: what was not looked at, and why.
        duration_s: how long the search took.
        freed_bytes: of a collectable cycle: bytes of all storages that ``gc.collect()`` would free
            with it; None if that is not known.
        device: of a tensor, as ``str(torch.device)``; "" for anything else.
        origin: which cell it is from, as in `Link.origin`; "" if that is not known.
    """

    name: str
    description: str
    chains: tuple[Chain, ...]
    n_references: int
    n_explained: int
    complete: bool
    verdict: str
    collectable: bool
    uncollectable: bool
    mend: str
    code: str
    size_bytes: int | None
    notes: tuple[str, ...]
    duration_s: float
    freed_bytes: int | None = None
    device: str = ""
    origin: str = ""

    def view(self) -> View:
        """Show the sentence, the picture, the chains and the mend."""
        from nbinspect.referrers.view import report_view

        return report_view(self)

    def to_objgraph(self, max_depth: int = 5, **options: Any) -> graphviz.Source:
        """How does objgraph draw the part of this that Python sees?

        Args:
            max_depth: how many references up.
            options: of `objgraph.show_backrefs`, e.g. ``too_many``, ``filter``, ``refcounts``.

        Returns:
            DOT text that a notebook shows as a picture, and that ``.render()`` writes to a file.

        Raises:
            LookupError: the object is gone, or no name leads to it by which it can be found again.

        **Cost**: a pass over the heap for each box, and one to find the object. objgraph collects
        garbage before it looks.
        **Blind to**: all that torch holds from C++, as objgraph is.
        **Source**: `objgraph.show_backrefs`, which knows type counts and growth too.
        """
        from nbinspect.referrers.unfold import objgraph_picture

        return objgraph_picture([chain.steps for chain in self.chains], max_depth, options)


@dataclass(frozen=True, slots=True)
class ReferenceSurvey(Record):
    """The largest live objects of one type, and why each is alive.

    Attributes:
        type_name: the type that was asked for.
        n_objects: how many there are.
        reports: the largest first.
    """

    type_name: str
    n_objects: int
    reports: tuple[ReferenceReport, ...]

    def view(self) -> View:
        """Show a table of them, and each report folded."""
        from nbinspect.referrers.view import survey_view

        return survey_view(self)
