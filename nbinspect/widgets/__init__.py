"""Live pictures: one class and one ES module each."""

from __future__ import annotations

import sys

__all__ = ["close_live", "open_live"]


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
