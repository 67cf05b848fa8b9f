"""Live pictures: one class and one ES module each."""

from __future__ import annotations

import sys
import typing

if typing.TYPE_CHECKING:
    from nbinspect.autograd_graph.records import GraphReport
    from nbinspect.gradients.records import GradientHistory
    from nbinspect.referrers.records import ReferenceReport
    from nbinspect.widgets.explorer import GraphExplorer
    from nbinspect.widgets.steps import GradientSteps

__all__ = ["close_live", "explore", "open_live"]


def open_live(*, hz: float = 5.0) -> None:
    """Show memory bars under the cell that keep moving while later cells run.

    Args:
        hz: readings a second, 0.2 to 20. Fewer are taken where they would cost more than 1 %
            of a core.

    Raises:
        ValueError: `hz` is out of range.

    **Cost**: one daemon thread that reads counters; the census of holders runs only between
    cells, and only where it is quick. Nothing is synchronised, allocated on a device or reset.
    **Blind to**: peaks between two readings.
    """
    from nbinspect.widgets.live import open_live as open_

    open_(hz=hz)


def close_live() -> int:
    """Close every live view and end its thread; give how many were open."""
    session = sys.modules.get("nbinspect.widgets.session")
    return int(session.close_live()) if session else 0


@typing.overload
def explore(report: ReferenceReport | GraphReport, target: object = None) -> GraphExplorer: ...
@typing.overload
def explore(report: GradientHistory, target: GradientHistory | None = None) -> GradientSteps: ...
def explore(
    report: ReferenceReport | GraphReport | GradientHistory, target: object = None
) -> GraphExplorer | GradientSteps:
    """Who else keeps this alive, or what is in this module? Walk from box to box with clicks.

    Given what `nbinspect.gradwatch` reported: what did the gradients do, step by step?

    Shown in a notebook, it shows the report too, which stays when no kernel answers any more.

    Args:
        report: what `nbinspect.refchain` answered, or `nbinspect.autograd`, or `gradwatch`.
        target: for `refchain`, the object that was asked about, only referred to weakly. Without
            it, and for an object that allows no weak reference, a click finds it again on its way
            down from a name. For `gradwatch`, an earlier run to show beside it.

    Raises:
        TypeError: what should be an earlier run is none.

    Returns:
        A widget that holds plain values alone, so it keeps nothing alive.

    **Cost**: a layout (0.1 s); each click a pass over the heap for each step from the target up to
    the box.
    **Blind to**: holders that exist in C++ alone, and the values of a running expression. Of what
    allows no weak reference (a list, a dictionary, a number) the ids and types on its way down are
    kept, which hold nothing; should it go and another of its type come to lie at the same address and
    place, that one is taken for it. ``torch.utils.swap_tensors`` refuses a tensor to which a weak
    reference is left: close the widget first.
    """
    from nbinspect.gradients.records import GradientHistory

    if isinstance(report, GradientHistory):
        if not isinstance(target, GradientHistory | None):
            raise TypeError(f"an earlier run is a GradientHistory, not {type(target).__name__}")
        from nbinspect.widgets.steps import explore_steps

        return explore_steps(report, target)
    from nbinspect.widgets.explorer import explore as explore_

    return explore_(report, target)
