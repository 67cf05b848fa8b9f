"""The graph behind a tensor as plain values: nodes, edges, modules, findings."""

from __future__ import annotations

from dataclasses import dataclass

from nbinspect.blocks import View
from nbinspect.records import Record, SourceLine


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """What a node keeps for its backward.

    Attributes:
        slot: torch's name for it, e.g. ``self``, ``result``, ``weight``.
        description: shape and dtype, e.g. ``64x256 float32``; for what a hook packed, its type.
        size_bytes: of the whole storage; None where a hook packed it, or where there are none.
        storage: equal for saved tensors of this report that share their bytes, None if unknown.
        kind: ACTIVATION (kept for backward alone), PARAMETER (alive anyway) or PACKED (by a
            saved-tensor hook, which is never run here).
        name: the parameter's fqn or the user's variable, "" if it has none.
    """

    slot: str
    description: str
    size_bytes: int | None
    storage: int | None
    kind: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class AutogradNode:
    """A node of the autograd graph: the backward of one operation, or a leaf.

    Attributes:
        key: its place in the order of the forward, from 0; producers come before consumers.
        name: torch's name, e.g. ``AddmmBackward0``, ``AccumulateGrad``.
        module: fqn of the module whose forward made it, "" for none; see `GraphReport.watched`.
        op: the operation, e.g. ``aten::addmm``; "" if the forward was not watched.
        line: the line of the user's code that ran it; None if the forward was not watched.
        shape: of the output; None if torch does not tell.
        dtype: of the output, e.g. ``float32``.
        device: of the output.
        saved: what it keeps for backward.
        saved_bytes: storages among them that nothing but backward needs, each once.
        leaf: for an AccumulateGrad the name of its tensor: a parameter's fqn, a variable.
        is_parameter: that leaf belongs to a module.
        variables: the user's names for the output.
        grad_norm: 2-norm of the gradient, for leaves that have one; NaN and Inf are kept.
        problem: why it is marked, e.g. ``NaN in the gradient``, ``NaN in what it saves (`self`)``,
            "" if it is not.
    """

    key: int
    name: str
    module: str = ""
    op: str = ""
    line: SourceLine | None = None
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    device: str = ""
    saved: tuple[SavedTensor, ...] = ()
    saved_bytes: int = 0
    leaf: str = ""
    is_parameter: bool = False
    variables: tuple[str, ...] = ()
    grad_norm: float | None = None
    problem: str = ""

    @property
    def description(self) -> str:
        """Shape and dtype of the output: ``64x256 float32``."""
        if self.shape is None:
            return self.dtype
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype}".strip()


@dataclass(frozen=True, slots=True)
class AutogradEdge:
    """What one operation made and another took.

    Attributes:
        source: key of the node that made it.
        target: key of the node that took it.
        slot: which input of the target it is, from 0.
    """

    source: int
    target: int
    slot: int


@dataclass(frozen=True, slots=True)
class GraphModule:
    """A module that has a part in the graph.

    Attributes:
        name: its fqn, e.g. ``model.layers.2``.
        type_name: its class, e.g. ``Linear``.
        n_nodes: nodes of its forward, those of its children too.
        saved_bytes: what they keep for backward, each storage once, without parameters.
        grad_norm: 2-norm over the gradients of its parameters, None if there are none yet.
        n_parameters: reached parameters, its children's too.
        is_container: its class only holds others (Sequential, ModuleList): no operation is its own.
    """

    name: str
    type_name: str
    n_nodes: int = 0
    saved_bytes: int = 0
    grad_norm: float | None = None
    n_parameters: int = 0
    is_container: bool = False


@dataclass(frozen=True, slots=True)
class GraphFinding:
    """Something about the graph that costs gradients, memory or an error in backward.

    Attributes:
        kind: UNREACHED, CUT, MODIFIED, JOINED, LEAF_MADE_WITHOUT_GRAD, LEAF_IS_COPY, BAD_GRADIENT,
            UNTRAINED, REUSED, TWICE (a second backward through what a first has released).
        sentence: what is wrong and why; names stand between backticks.
        code: the line that mends it, "" if there is none.
        names: what it is about: parameters, variables.
        line: where in the user's code it happened, None if that is not known.
        nodes: keys of the nodes that it is about.
        is_fault: False for what is worth knowing but often meant to be so.
    """

    kind: str
    sentence: str
    code: str = ""
    names: tuple[str, ...] = ()
    line: SourceLine | None = None
    nodes: tuple[int, ...] = ()
    is_fault: bool = True


@dataclass(frozen=True, slots=True)
class GraphReport(Record):
    """The graph behind a tensor: what made it, what it keeps, where it is broken.

    Attributes:
        name: the tensor, as the user wrote it.
        description: shape and dtype of the tensor.
        nodes: in the order of the forward.
        edges: from producer to consumer.
        modules: modules that have a part in it, in the order of the forward.
        findings: faults first.
        saved_bytes: storages kept for backward alone, each counted once.
        saved_parameter_bytes: saved too, but parameters or buffers, which are alive anyway.
        n_packed: saved tensors that a hook packed; their size is unknown.
        n_parameters: parameters that the graph reaches.
        complete: False if there were more nodes than may be looked at.
        watched: the forward was watched, so lines and modules are what ran; else modules are
            inferred from the names of parameters.
        freed: a backward has already released what the graph had saved.
        notes: what is not known, and why.
        depth: how deep modules are unfolded in the picture, None for as deep as fits.
        show_saved: the picture has a box for each saved tensor.
        show_params: the picture has views and leaves too.
    """

    name: str
    description: str
    nodes: tuple[AutogradNode, ...]
    edges: tuple[AutogradEdge, ...]
    modules: tuple[GraphModule, ...] = ()
    findings: tuple[GraphFinding, ...] = ()
    saved_bytes: int = 0
    saved_parameter_bytes: int = 0
    n_packed: int = 0
    n_parameters: int = 0
    complete: bool = True
    watched: bool = False
    freed: bool = False
    notes: tuple[str, ...] = ()
    depth: int | None = None
    show_saved: bool = False
    show_params: bool = False

    def view(self) -> View:
        """The sentence, the findings, the picture, the modules."""
        from nbinspect.autograd_graph.view import report_view

        return report_view(self)
