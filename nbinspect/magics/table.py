"""What each magic is called, which options it takes and what it does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from nbinspect.magics.gradients import (
    gradtable,
    gradtable_options,
    gradwatch_options,
    open_gradwatch,
    show_steps,
)
from nbinspect.magics.graphs import (
    autograd_options,
    explore_graph,
    graphwatch_options,
    make_graphwatch,
    run_autograd,
)
from nbinspect.magics.leaks import (
    leakwatch_options,
    make_leakwatch,
    run_traceback_memory,
    traceback_memory_options,
)
from nbinspect.magics.nonfinite import make_nanwatch, nanwatch_options
from nbinspect.magics.options import (
    Options,
    add_output,
    positive_int,
    rate,
)
from nbinspect.magics.precision import (
    gradcheck_options,
    headroom_cell_options,
    headroom_line_options,
    make_headroom,
    run_gradcheck,
    run_headroom,
)
from nbinspect.magics.references import explore_holders, refchain_options, run_refchain
from nbinspect.magics.snapshots import memsnapshot_options, run_memsnapshot, show_timeline
from nbinspect.records import Record


class Watch(Protocol):
    """What observes a cell: a context manager that has a record afterwards.

    An error raised by these three becomes a short note and leaves the cell alone, unless its class
    has a true `ends_the_cell`: then the cell ends with it, and its report is shown all the same.
    A watch that compares repetitions has a method `repetitions` too, which gives one item for each.
    """

    @property
    def report(self) -> Record:
        """The record; asked for after the exit."""

    def __enter__(self) -> object:
        """Start observing."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool | None:
        """Stop observing, whatever ended the cell; the return value changes nothing."""


@dataclass(frozen=True, slots=True)
class LineMagic:
    """A line magic.

    Attributes:
        options: its parser, which also writes its help.
        run: makes its record, None if there is none. A ValueError is the user's mistake and
            becomes a usage error.
        show: shows the record in a notebook in a way of its own, e.g. with a widget, and says
            whether it did; None for the usual way.
    """

    options: Options
    run: Callable[[argparse.Namespace], Record | None]
    show: Callable[[argparse.Namespace, Record], bool] | None = None


@dataclass(frozen=True, slots=True)
class WatchMagic:
    """A cell magic, which observes the user's cell.

    Attributes:
        options: its parser, which also writes its help. It must refuse every bad value itself:
            when the watch is made it is too late to keep the cell from running.
        watch: makes the watch.
        show: as a line magic's.
    """

    options: Options
    watch: Callable[[argparse.Namespace], Watch]
    show: Callable[[argparse.Namespace, Record], bool] | None = None


LIVE_CLOSERS: set[Callable[[], int]] = set()
"""What closes the live views that were opened here; called when the extension is unloaded."""


def _gpumem_options() -> Options:
    options = Options(
        "%gpumem",
        """
        What is in memory now, and who holds it?

        Shows one bar per device, the largest holders and what can be freed, and returns the
        record. Nothing is collected, freed, reset or synchronised.

        Examples:
            %gpumem                      # every device
            %gpumem --device cuda:0      # one device
            m = %gpumem --top 30         # shown, and kept as m
            %gpumem -o m ;               # only kept
            %gpumem --live               # bars that move while later cells run
            %gpumem --live --stop        # close them

        In Python: nbinspect.gpumem(). On the first line of a cell, %%gpumem is %%memwatch.
        """,
    )
    options.add_argument(
        "--top", type=positive_int, default=10, metavar="N", help="holders to list (10)"
    )
    options.add_argument("--device", metavar="D", help="one device alone, e.g. cuda:0 or cpu")
    options.complete("--device", _device_names)
    options.add_argument("--live", action="store_true", help="open bars that keep moving")
    options.add_argument(
        "--hz", type=rate, default=5.0, metavar="N", help="their updates per second, 0.2 to 20 (5)"
    )
    options.add_argument("--stop", action="store_true", help="close all live bars")
    add_output(options)
    return options


def _device_names() -> list[str]:
    """List the devices, without importing torch just for a Tab."""
    if "torch" not in sys.modules:
        return ["cpu"]
    from torch import accelerator

    device = accelerator.current_accelerator(check_available=True)
    n_devices = accelerator.device_count() if device else 0
    return [f"{device.type}:{index}" for index in range(n_devices) if device] + ["cpu"]


def _gpumem(options: argparse.Namespace) -> Record | None:
    if options.stop:
        _close_live()
        return None
    if options.live:
        _open_live(options)
        return None
    import nbinspect

    record: Record = nbinspect.gpumem(device=options.device, top=options.top)
    return record


def _open_live(options: argparse.Namespace) -> None:
    if options.output or options.device:
        raise ValueError("--live shows every device and keeps no record: leave out -o and --device")
    from nbinspect.widgets import close_live, open_live

    LIVE_CLOSERS.add(close_live)
    open_live(hz=options.hz)


def _close_live() -> None:
    from nbinspect.widgets import close_live

    n_closed = close_live()
    sys.stdout.write(f"{n_closed} live view{'' if n_closed == 1 else 's'} closed\n")


def _memwatch_options(magic: str) -> Options:
    options = Options(
        magic,
        f"""
        What does this cell do to memory?

        Runs the cell as it would run without this line, then shows the peak, a timeline, what
        each line and module allocated and what stayed behind, also if the cell failed.

        Examples:
            {magic}                   # on the first line of a cell
            {magic} --top 20          # longer tables
            {magic} -o report         # keep the record as report
            {magic} --exact           # on the CPU, count kernel workspaces too; slower
            {magic} --eager           # look into compiled functions, by running them eagerly

        In Python: with nbinspect.memwatch() as w: ..., then w.report.
        """,
    )
    options.add_argument(
        "--top", type=positive_int, default=10, metavar="N", help="rows of each table (10)"
    )
    options.add_argument(
        "--exact", action="store_true", help="ask torch's profiler for every allocation"
    )
    options.add_argument(
        "--eager", action="store_true", help="run compiled functions eagerly, to see inside"
    )
    add_output(options)
    return options


def _memwatch(options: argparse.Namespace) -> Watch:
    import nbinspect

    watch: Watch = nbinspect.memwatch(exact=options.exact, eager=options.eager, top=options.top)
    return watch


LINE_MAGICS: dict[str, LineMagic] = {
    "autograd": LineMagic(autograd_options(), run_autograd, explore_graph),
    "gradtable": LineMagic(gradtable_options(), gradtable),
    "gpumem": LineMagic(_gpumem_options(), _gpumem),
    "gradcheck": LineMagic(gradcheck_options(), run_gradcheck),
    "headroom": LineMagic(headroom_line_options(), run_headroom),
    "memsnapshot": LineMagic(memsnapshot_options(), run_memsnapshot, show_timeline),
    "refchain": LineMagic(refchain_options(), run_refchain, explore_holders),
    "traceback_memory": LineMagic(traceback_memory_options(), run_traceback_memory),
}

WATCHES: dict[str, WatchMagic] = {
    "graphwatch": WatchMagic(graphwatch_options(), make_graphwatch, explore_graph),
    "leakwatch": WatchMagic(leakwatch_options(), make_leakwatch),
    "memwatch": WatchMagic(_memwatch_options("%%memwatch"), _memwatch),
    "gpumem": WatchMagic(_memwatch_options("%%gpumem"), _memwatch),
    "nanwatch": WatchMagic(nanwatch_options(), make_nanwatch),
    "headroom": WatchMagic(headroom_cell_options(), make_headroom),
    "gradwatch": WatchMagic(gradwatch_options(), open_gradwatch, show_steps),
}
