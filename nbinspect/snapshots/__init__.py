"""Snapshot files of torch's CUDA allocator, read post mortem: without a GPU, and without torch."""

from nbinspect.snapshots.answer import memsnapshot, record_snapshot
from nbinspect.snapshots.records import AllocatorSnapshot

__all__ = ["AllocatorSnapshot", "memsnapshot", "record_snapshot"]
