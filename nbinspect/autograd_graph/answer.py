"""The answer to "what does the graph behind this tensor look like, and where is it broken"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from nbinspect import _torch
from nbinspect.autograd_graph import watched
from nbinspect.autograd_graph.facts import Facts, gather, module_rows
from nbinspect.autograd_graph.findings import find
from nbinspect.autograd_graph.naming import Names, names_of
from nbinspect.autograd_graph.question import Question
from nbinspect.autograd_graph.records import AutogradEdge, GraphReport
from nbinspect.autograd_graph.walk import Walked, is_leaf, walk
from nbinspect.heapgraph.graph import collector_paused
from nbinspect.render.format import count
from nbinspect.tensors import class_name, describe, is_tensor, looking

MOST_PACKED = 4  # nodes that a note names


def autograd(
    tensor: torch.Tensor,
    *,
    name: str = "",
    depth: int | None = None,
    saved: bool = False,
    params: bool = False,
) -> GraphReport:
    """What does the graph behind this tensor look like, what does it keep, where is it broken?

    Args:
        tensor: any tensor, usually a loss; of any shape.
        name: what to call it; else the name that the notebook or a running function has for it.
        depth: how deep modules are unfolded in the picture; None for as deep as is readable.
        saved: draw a box for each saved tensor.
        params: draw views and leaves too, which are left out otherwise.

    Returns:
        Nodes, edges, modules and findings as plain values; sizes in bytes.

    Raises:
        TypeError: `tensor` is no tensor.
        ValueError: `depth` is below 1.

    Cost: about 20 µs a node, a pass over the objects of Python's collector (40 ms in a notebook) and
    a norm of each gradient and of each saved tensor that there is: a read for each device and dtype.
    Runs no hook: what ``torch.utils.checkpoint`` dropped is not computed again.
    Blind to: a NaN that no operation saved and that reached no leaf's gradient; nodes beyond the first 20,000, said in `notes`; what only the forward knew (lines, where
    a path was cut), unless it was watched by `graphwatch`.
    Source: ``Node.next_functions``, ``_raw_saved_*``, ``Node._input_metadata``.
    """
    if not is_tensor(tensor):
        raise TypeError(f"autograd looks at tensors, not at {class_name(type(tensor))}")
    if depth is not None and depth < 1:
        raise ValueError(f"depth must be at least 1, not {depth}")
    return assemble(tensor, watched.LAST, name=name, depth=depth, saved=saved, params=params)


def assemble(
    tensor: torch.Tensor,
    seen: watched.Watched,
    *,
    name: str = "",
    depth: int | None = None,
    saved: bool = False,
    params: bool = False,
) -> GraphReport:
    """Walk and describe the graph behind a tensor, with what a watch has seen of its forward."""
    with looking(), collector_paused():
        walked = walk(tensor.grad_fn)
        if not _is_about(seen, tensor, walked):
            seen = watched.Watched()
        kept = [list(_torch.raw_saved(node)) for node in walked.nodes]
        names = names_of(_leaves(walked, tensor, seen), _frozen(kept))
        try:
            facts = gather(walked, kept, names, seen.origins(names.modules))
            called = name or _called(names, tensor)
            question = Question(tensor, called, walked, facts, names, seen)
            findings = find(question)
            types = {**seen.types(names.modules), **names.types}
            return GraphReport(
                name=called,
                description=describe(tensor),
                nodes=tuple(facts.nodes),
                edges=tuple(AutogradEdge(*edge) for edge in walked.edges),
                modules=module_rows(facts, types, names.containers),
                findings=tuple(findings),
                saved_bytes=sum(facts.storage_bytes.values()),
                saved_parameter_bytes=facts.parameter_bytes,
                n_packed=facts.n_packed,
                n_parameters=sum(node.is_parameter for node in facts.nodes),
                complete=walked.complete,
                watched=facts.watched,
                freed=question.all_freed,
                notes=tuple(_notes(walked, facts, question)),
                depth=depth,
                show_saved=saved,
                show_params=params,
            )
        finally:
            walked.close()
            kept.clear()
            names.close()


def _is_about(seen: watched.Watched, tensor: torch.Tensor, walked: Walked) -> bool:
    """Say whether a watch saw this tensor, or one of the operations behind it, being made."""
    if seen.knows(tensor):
        return True
    numbers = [_torch.sequence_number(node) for node in walked.nodes]
    last = seen.numbers[-1] if seen.numbers else 0
    return any(n is not None and seen.first <= n < last for n in numbers)


def _leaves(walked: Walked, tensor: torch.Tensor, seen: watched.Watched) -> Iterable[Any]:
    """Give the tensors whose modules matter: what is reached, and what a watched cell used."""
    yield from (node.variable for node in walked.nodes if is_leaf(node))
    yield tensor
    yield from seen.parameters()


def _frozen(kept: Iterable[list[tuple[str, Any, Any]]]) -> Iterator[Any]:
    """Yield what is saved and needs no gradient: frozen parameters and buffers are among it."""
    for saved in kept:
        for _, value, hook in saved:
            if hook is None and is_tensor(value) and not value.requires_grad:
                yield value


def _called(names: Names, tensor: torch.Tensor) -> str:
    found = names.tensor(tensor)
    return found or "tensor"


def _notes(walked: Walked, facts: Facts, question: Question) -> list[str]:
    notes = []
    if not walked.complete:
        notes.append(
            f"The graph has more nodes than can be looked at without danger to this process; these "
            f"are the {count(len(walked.nodes))} nearest to {question.name}, and what is said of the graph "
            "holds for them alone."
        )
    if question.hides_inside:
        notes.append(
            "A reentrant checkpoint shows nothing of its inside before backward runs it again, so which "
            "parameters are reached is not known; use_reentrant=False shows them."
        )
    if facts.n_packed:
        notes.append(
            f"{facts.n_packed} saved values were packed by a saved-tensor hook (checkpointing, "
            f"offloading), those of {_packed(facts)}. No hook was run, so it is not checked whether "
            "they were changed since."
        )
    if question.all_freed:
        notes.append(
            "A backward has already run on this graph and released what it had saved; look at it "
            "before backward, or under %%graphwatch, to see those bytes."
        )
    if walked.nodes and not facts.watched:
        known = "Modules are inferred from the names of parameters" if question.names.types else ""
        notes.append(
            f"{known + '; lines' if known else 'Lines'} are not known. Run the forward under "
            "%%graphwatch to see what really ran, line by line, and where paths are cut."
        )
    if _torch.has_compiled() and any(node.name.startswith("Compiled") for node in facts.nodes):
        notes.append("A compiled function is one node: autograd does not see inside it.")
    return notes


def _packed(facts: Facts) -> str:
    """Say which nodes have saved what a hook packed: the first few, and how many more."""
    found = [
        f"{node.name}{f' in {node.module}' if node.module else ''}"
        for node in facts.nodes
        if any(one.kind == "PACKED" for one in node.saved)
    ]
    names = list(dict.fromkeys(found))
    rest = len(names) - MOST_PACKED
    shown = ", ".join(names[:MOST_PACKED])
    return f"{shown} and {rest} more" if rest > 0 else shown
