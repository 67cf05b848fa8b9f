"""`%memsnapshot`: its options, and what it calls."""

from __future__ import annotations

import argparse

from nbinspect.magics.options import Options, add_output, whole
from nbinspect.records import Record


def memsnapshot_options() -> Options:
    """Say what `%memsnapshot` takes."""
    options = Options(
        "%memsnapshot",
        """
        What filled the GPU? Reads a snapshot file of torch's CUDA allocator, without a GPU.

        Shows the curve with its peak, what was alive then by the line that allocated it, the map
        of segments, the largest allocations and what was never freed. Click on the curve to list
        what was alive at that moment. Nothing in the file is executed.

        Examples:
            %memsnapshot run.pickle            # also run.pickle.gz
            %memsnapshot run.pickle -o snap    # keep the record as snap
            %memsnapshot --record              # take one of this process, on CUDA

        Write such a file with torch.cuda.memory._record_memory_history() before and
        torch.cuda.memory._dump_snapshot("run.pickle") after what is to be seen.
        In Python: nbinspect.memsnapshot("run.pickle").
        """,
    )
    options.add_argument("file", nargs="?", metavar="FILE", help="the snapshot file")
    options.add_argument("--record", action="store_true", help="take a snapshot of this process")
    options.add_argument("--device", type=whole, metavar="N", help="look at one GPU alone")
    add_output(options)
    return options


def run_memsnapshot(options: argparse.Namespace) -> Record:
    """Read the file, or take a snapshot."""
    from nbinspect.snapshots import memsnapshot, record_snapshot

    if options.record:
        if options.file:
            raise ValueError("takes a file or --record, not both")
        return record_snapshot()
    if not options.file:
        raise ValueError("name a snapshot file, or --record one")
    try:
        return memsnapshot(options.file, device=options.device)
    except OSError as error:
        raise ValueError(f"{options.file} cannot be read: {error.strerror or error}") from None


def show_timeline(_options: argparse.Namespace, record: Record) -> bool:
    """Show the curve to click on, and the report below it."""
    from nbinspect.snapshots import AllocatorSnapshot

    if not isinstance(record, AllocatorSnapshot) or not record.n_entries:
        return False
    from nbinspect.widgets.allocations import show_snapshot

    show_snapshot(record)
    return True
