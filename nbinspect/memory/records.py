"""What memory inspection returns: plain values that need no torch to be read or shown."""

from __future__ import annotations

from dataclasses import dataclass

from nbinspect.blocks import View
from nbinspect.records import Holding, Reading, Record, SourceLine


@dataclass(frozen=True, slots=True)
class Waste:
    """Memory that is held for nothing, and the line that frees it.

    Attributes:
        what: the sentence, e.g. "`row` uses 0.1 % of the 4.00 MiB it keeps".
        mend: a line of code, "" if there is none.
        size_bytes: what it would give back.
        device: where.
    """

    what: str
    mend: str
    size_bytes: int
    device: str


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device: its counters, and every live storage on it with its holder.

    Attributes:
        device: ``str(torch.device)``.
        total_bytes: the device's memory; for ``cpu`` the limit that kills the process, which is
            the container's where there is one, else the machine's RAM.
        total_note: what that total is.
        free_bytes: what is left of it for anybody.
        allocated_bytes: held by tensors, by torch's own count.
        reserved_bytes: allocated plus cached for reuse, by torch's own count.
        process_bytes: the whole process: resident set on ``cpu``, NVML's figure on CUDA.
        others_bytes: other processes on the same device.
        tracked_bytes: sum of `holdings`, found by looking at the live objects.
        by_kind: bytes per holder kind, in the order of holder kinds, zeros left out.
        holdings: every holder, largest first.
        complete: every live storage that can be seen from Python was looked at.
        notes: what is not known, and why.
    """

    device: str
    total_bytes: Reading
    total_note: str
    free_bytes: Reading
    allocated_bytes: Reading
    reserved_bytes: Reading
    process_bytes: Reading
    others_bytes: Reading
    tracked_bytes: int
    by_kind: tuple[tuple[str, int], ...]
    holdings: tuple[Holding, ...]
    complete: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemorySnapshot(Record):
    """What is in memory at one moment.

    Attributes:
        devices: accelerators first, ``cpu`` last.
        waste: memory held for nothing, largest first.
        complete: all devices are.
        n_top: how many holdings the tables show.
    """

    devices: tuple[DeviceMemory, ...]
    waste: tuple[Waste, ...]
    complete: bool
    n_top: int = 10

    def device(self, name: str) -> DeviceMemory:
        """Give one device by its name; ``cuda`` means the first CUDA device.

        Raises:
            KeyError: no such device is in this snapshot.
        """
        for one in self.devices:
            if one.device == name or one.device.partition(":")[0] == name:
                return one
        known = ", ".join(one.device for one in self.devices)
        raise KeyError(f"no device {name!r} in this snapshot, which has {known}")

    def diff(self, other: MemorySnapshot) -> MemoryDiff:
        """Say what changed from this snapshot to `other`; empty if nothing did."""
        before, after = self._sizes(), other._sizes()
        changes = [
            Change(*holder, before.get(holder, 0), after.get(holder, 0))
            for holder in dict.fromkeys((*before, *after))
            if before.get(holder, 0) != after.get(holder, 0)
        ]
        changes.sort(key=lambda one: (-abs(one.after_bytes - one.before_bytes), one.owner))
        return MemoryDiff(tuple(changes))

    def _sizes(self) -> dict[tuple[str, str, str], int]:
        """Give bytes by (device, kind, owner)."""
        return {
            (device.device, one.kind, one.owner): one.size_bytes
            for device in self.devices
            for one in device.holdings
        }

    def view(self) -> View:
        """Show the answer, bars, the largest holders, advice and small print."""
        from nbinspect.memory.view import snapshot_view

        return snapshot_view(self)


@dataclass(frozen=True, slots=True)
class Change:
    """A holder whose bytes changed between two snapshots."""

    device: str
    kind: str
    owner: str
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryDiff(Record):
    """Changes between two snapshots, the largest first; false if there are none."""

    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def view(self) -> View:
        """Show the change of each holder."""
        from nbinspect.memory.view import diff_view

        return diff_view(self)


@dataclass(frozen=True, slots=True)
class LineMemory:
    """What one line of the user's code allocated.

    Attributes:
        where: the line; None for what no line of the user's own could be blamed for.
        allocated_bytes: all that it allocated.
        n_allocations: in how many storages.
        at_peak_bytes: of it, alive at the peak.
        kept_bytes: of it, alive at the end.
    """

    where: SourceLine | None
    device: str
    allocated_bytes: int
    n_allocations: int
    at_peak_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class ModuleMemory:
    """What the forward pass of one module allocated itself, its children not counted."""

    name: str
    type_name: str
    device: str
    allocated_bytes: int
    n_allocations: int
    at_peak_bytes: int


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """One device while the cell ran: `times_s` and `sizes_bytes` are steps of bytes held."""

    device: str
    before_bytes: int
    peak_bytes: int
    after_bytes: int
    peak_time_s: float
    peak_where: SourceLine | None
    times_s: tuple[float, ...]
    sizes_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryReport(Record):
    """What a cell did to memory.

    Attributes:
        before: what was there first.
        after: what was there at the end.
        device: the device with the largest rise; the next three are about it.
        peak_bytes: the most that was held at once.
        added_peak_bytes: the same, above what was there before.
        timeline: (seconds, bytes) steps of what was held.
        peaks: the same for every device.
        lines: the user's lines that allocated, most first.
        modules: the modules whose forward pass allocated, most first.
        kept: what stayed behind, by holder.
        source: who was asked: "op stream", "profiler" or "allocator history".
        duration_s: how long the cell ran.
        error: type name of the exception that ended the cell, "" if none.
        notes: what is not known, and why.
    """

    before: MemorySnapshot
    after: MemorySnapshot
    device: str
    peak_bytes: int
    added_peak_bytes: int
    timeline: tuple[tuple[float, int], ...]
    peaks: tuple[DevicePeak, ...]
    lines: tuple[LineMemory, ...]
    modules: tuple[ModuleMemory, ...]
    kept: tuple[Holding, ...]
    source: str
    duration_s: float
    error: str = ""
    notes: tuple[str, ...] = ()

    def view(self) -> View:
        """Show the peak, the timeline, lines, modules and what stayed."""
        from nbinspect.memory.view import report_view

        return report_view(self)
