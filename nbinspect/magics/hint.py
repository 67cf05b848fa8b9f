"""One line after a failed cell, if the error keeps much memory alive."""

from __future__ import annotations

import sys
from typing import Any

from IPython.core.interactiveshell import ExecutionResult

from nbinspect.magics.showing import Shell, own_errors

DEFAULT_BYTES = 64 << 20
DEFAULT_SHARE = 0.05  # of a device that has little
MAGIC = "%traceback_memory"


class HintSetting:
    """When to hint.

    Attributes:
        threshold_bytes: bytes that an error must keep alive; None for the default.
        is_on: whether to hint at all.
    """

    threshold_bytes: int | None = None
    is_on: bool = True

    def set(self, asked: str | int) -> str:
        """Take ``on``, ``off`` or a number of bytes, and say what holds now."""
        from nbinspect.render.format import bytes_text

        self.is_on = asked != "off"
        if not isinstance(asked, int):
            self.threshold_bytes = None
        else:
            self.threshold_bytes = asked
        if not self.is_on:
            return "no hints after failed cells\n"
        return f"a hint after a cell whose error keeps {bytes_text(self.bytes())} or more\n"

    def bytes(self) -> int:
        """Give the number of bytes from which on to hint."""
        if self.threshold_bytes is not None:
            return self.threshold_bytes
        return min(DEFAULT_BYTES, int(DEFAULT_SHARE * _least_memory()))


HINT = HintSetting()


def _least_memory() -> int:
    """Give the memory of the device that has least."""
    import torch

    from nbinspect import _torch
    from nbinspect.memory.system import host_memory

    devices = map(torch.device, _torch.accelerators())
    totals = [_torch.allocator_counters(device).total_bytes for device in devices]
    totals.append(host_memory().total_bytes)
    return min((one for one in totals if isinstance(one, int) and one), default=DEFAULT_BYTES * 100)


class Hint:
    """Told of every cell's end, and looks at the error of one that failed."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def after(self, result: ExecutionResult | None) -> None:
        """Look at a cell that has ended."""
        error = None if result is None else result.error_in_exec
        if error is None or not HINT.is_on or "torch" not in sys.modules:
            return
        try:
            with own_errors(MAGIC, error):
                self._look(error)
        except KeyboardInterrupt:  # the cell's outcome is settled; the user tires of waiting
            return

    def _look(self, error: Any) -> None:
        if error is not getattr(sys, "last_value", None):  # it was shown by somebody else
            return
        from nbinspect.leaks.error_view import hint_view
        from nbinspect.leaks.glance import worth_a_look
        from nbinspect.leaks.pinned import traceback_memory

        least = HINT.bytes()
        if not worth_a_look(least):
            return
        found = traceback_memory()
        if found.oom is not None or found.only_here_bytes >= least:
            self._show(hint_view(found))

    def _show(self, view: Any) -> None:
        from nbinspect.render.html import to_html
        from nbinspect.render.text import to_text

        bundle = {"text/plain": to_text(view)}
        if self._shell.display_formatter.active_types != ["text/plain"]:
            bundle["text/html"] = to_html(view)
        self._shell.display_pub.publish(bundle, {})
