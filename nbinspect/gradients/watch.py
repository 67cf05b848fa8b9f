"""Watches every step of a running loop, through hooks on optimizers and parameters alone."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from torch import nn

from nbinspect.gradients.records import GradientHistory, Rules
from nbinspect.gradients.stepping import Stepping

KEEP = 1000


def gradwatch(
    *,
    model: nn.Module | str | None = None,
    every: int = 1,
    hist: int = 0,
    keep: int = KEEP,
    light: bool = False,
    exact: bool = False,
    rules: Rules | None = None,
) -> GradientWatch:
    """Answer what gradients do, step by step and layer by layer, and whether they are well.

    Args:
        model: watch its parameters alone: a module or the name of a variable; None for all that
            an optimizer has or backward reaches.
        every: read only every so many steps.
        hist: count the gradients' powers of two every so many read steps; 0 for never.
        keep: how many steps to keep; beyond it older ones are thinned out, but for those that a
            finding names.
        light: make no copies of weights and gradients, and so tell no updates and no cosines.
        exact: take all parameters whole. Without it, updates and cosines of one with more than a
            million elements are worked out from a sample, and are right within some hundredths.
        rules: thresholds of the health rules.

    Returns:
        A context manager whose `report` is a `GradientHistory` once it has ended; before that it
        gives what there is so far.

    Raises:
        TypeError: `model` is neither a module nor a name.
        ValueError: a number or the rules' range is out of range.

    **Cost**: a few fused passes over gradients and weights each step (benchmarks/RESULTS.md), twice
    as many on the CPU where nbinspect was installed without a C compiler, and one wait for the
    device. Unless `light`, a copy of the weights and the gradients of the step before, of a
    parameter with more than a million elements a ninth; with `exact`, of all. A kept step takes 31
    bytes a parameter. Results are bit-identical.
    **Blind to**: gradients that never reach `.grad` (``torch.autograd.grad``), gradients clipped
    during backward by the user's own hooks, what is written to weights outside of an optimizer's
    step, scalers other than torch's own, and other processes' parts of a sharded gradient; whose
    loss is whose where threads train at once. A loop that writes by itself has a step for each
    backward pass. A model that is made in the cell without ``nn.Module`` is seen after clipping in
    its first step. Where optimizers take turns each turn is a step, so `every` may always meet the
    same one.
    **Source**: ``torch.Tensor.register_post_accumulate_grad_hook``,
    ``torch.optim.optimizer.register_optimizer_step_pre_hook`` and ``..._post_hook``,
    ``torch.nn.modules.module.register_module_parameter_registration_hook``.
    """
    if not (model is None or isinstance(model, (str, nn.Module))):
        raise TypeError(f"takes a torch.nn.Module or a variable's name, not {type(model).__name__}")
    for name, number, least in (("every", every, 1), ("hist", hist, 0), ("keep", keep, 1)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, not {number}")
    return GradientWatch(model, every, hist, keep, light=light, exact=exact, rules=rules or Rules())


class GradientWatch:
    """The context manager that `gradwatch` gives; enter it once."""

    def __init__(
        self,
        model: nn.Module | str | None,
        every: int,
        hist: int,
        keep: int,
        *,
        light: bool,
        exact: bool,
        rules: Rules,
    ) -> None:
        self._stepping = Stepping(model, every, hist, keep, light=light, exact=exact, rules=rules)
        self._undo = ExitStack()
        self._has_begun = False

    @property
    def report(self) -> GradientHistory:
        """What was seen, so far or until the end.

        Raises:
            RuntimeError: the watch has not begun.
        """
        if not self._has_begun:
            raise RuntimeError("the watch has not begun; its report comes with the block")
        return self._stepping.report()

    def __enter__(self) -> Self:
        self._has_begun = True
        with ExitStack() as undo:
            self._stepping.hook(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self._stepping.end(kind.__name__ if kind else "")
        finally:
            self._undo.close()
