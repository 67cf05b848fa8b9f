"""Snapshots as torch writes them, new and old, made by playing a small program."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

MIB = 1 << 20
START_US = 1_700_000_000_000_000


def frame(name: str, filename: str, line: int) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}


MACHINERY = [
    frame("torch::unwind::unwind()", "??", 0),
    frame("c10::cuda::CUDACachingAllocator::Native::alloc()", "CUDACachingAllocator.cpp", 9),
]
MODULE = frame("_call_impl", "/opt/lib/python3.12/site-packages/torch/nn/modules/module.py", 1790)
FORWARD = [*MACHINERY, MODULE, frame("forward", "/home/me/model.py", 12)]
LOADING = [*MACHINERY, frame("load", "/home/me/data.py", 3)]
CELL = [*MACHINERY, frame("<module>", "<ipython-input-7-0123abcd>", 2)]
KERNEL = [*MACHINERY, frame("<module>", "/tmp/ipykernel_99/123456.py", 4)]
BACKWARD = [*MACHINERY, frame("torch::autograd::Engine::thread_main()", "engine.cpp", 5)]


class Program:
    """An allocator with one segment, whose calls are written down as torch does."""

    def __init__(self, size: int, device: int = 0, address: int = 1 << 30) -> None:
        self.size, self.device, self.address = size, device, address
        self.blocks: dict[int, dict[str, Any]] = {}
        self.trace: list[dict[str, Any]] = []
        self.next = address

    def _log(self, action: str, at: int, size: int, frames: list[Any]) -> None:
        time_us = START_US + 1000 * len(self.trace)
        self.trace.append(
            {"action": action, "addr": at, "size": size, "stream": 0, "frames": frames}
            | {"time_us": time_us, "user_metadata": "", "compile_context": "N/A"}
        )

    def reserve(self) -> None:
        self._log("segment_alloc", self.address, self.size, MACHINERY)

    def alloc(self, size: int, frames: list[Any], *, logged: bool = True) -> int:
        block = -(-size // 512) * 512
        at, self.next = self.next, self.next + block
        self.blocks[at] = {"address": at, "size": block, "requested_size": size, "frames": frames}
        self.blocks[at]["state"] = "active_allocated"
        if logged:
            self._log("alloc", at, size, frames)
        return at

    def free(self, at: int, *, waits: bool = False) -> None:
        size = self.blocks[at]["requested_size"]
        self._log("free_requested", at, size, [])
        if waits:
            self.blocks[at]["state"] = "active_pending_free"
        else:
            self._log("free_completed", at, size, [])
            self.blocks[at]["state"] = "inactive"

    def fail(self, size: int, free: int, frames: list[Any]) -> None:
        self._log("oom", 0, size, frames)
        self.trace[-1]["device_free"] = free

    def segment(self) -> dict[str, Any]:
        blocks = [dict(one) for one in self.blocks.values()]
        used = sum(one["size"] for one in blocks)
        if used < self.size:
            rest = {"address": self.next, "size": self.size - used, "requested_size": 0}
            blocks.append(rest | {"state": "inactive", "frames": []})
        used = [one for one in blocks if one["state"] == "active_allocated"]
        allocated = sum(one["size"] for one in used)
        waiting = sum(one["size"] for one in blocks if one["state"] == "active_pending_free")
        return {
            "device": self.device,
            "address": self.address,
            "total_size": self.size,
            "allocated_size": allocated,
            "active_size": allocated + waiting,
            "requested_size": sum(one["requested_size"] for one in used),
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }


def snapshot(*programs: Program) -> dict[str, Any]:
    traces: list[list[Any]] = [[] for _ in range(1 + max(one.device for one in programs))]
    for one in programs:
        traces[one.device] += one.trace
    return {
        "segments": [one.segment() for one in programs],
        "device_traces": traces,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [
            {"stage": stage, "name": "step", "device": 0, "time_us": START_US + at}
            for stage, at in (("START", 1000), ("END", 3000))
        ],
    }


def training() -> dict[str, Any]:
    """4 MiB from before the log; at most 4 + 8 + 2 at once; 4 + 2 + 1 at the end."""
    program = Program(32 * MIB)
    program.alloc(4 * MIB, LOADING, logged=False)
    program.alloc(1 * MIB, [], logged=False)
    early = program.alloc(1 * MIB, LOADING, logged=False)
    program.free(early)
    activations = program.alloc(8 * MIB, FORWARD)
    program.alloc(2 * MIB, CELL)
    program.fail(64 * MIB, 3 * MIB, FORWARD)
    program.free(activations)
    gradient = program.alloc(1 * MIB, BACKWARD)
    program.free(gradient, waits=True)
    return snapshot(program)


def old(new: dict[str, Any]) -> dict[str, Any]:
    """The same as torch before 2.1 wrote it: no times, no addresses of blocks, frames in a history."""
    segments = []
    for segment in new["segments"]:
        dropped = {"requested_size", "is_expandable", "segment_pool_id", "frames"}
        kept = {key: value for key, value in segment.items() if key not in dropped}
        blocks = []
        for block in segment["blocks"]:
            history = [{"addr": block["address"], "frames": block["frames"]}]
            history[0]["real_size"] = block["requested_size"]
            blocks.append({"size": block["size"], "state": block["state"], "history": history})
        segments.append({**kept, "blocks": blocks})
    dropped = {"time_us", "user_metadata", "compile_context"}
    traces = [
        [{key: value for key, value in one.items() if key not in dropped} for one in trace]
        for trace in new["device_traces"]
    ]
    return {"segments": segments, "device_traces": traces}


def write(path: Path, found: Any, *, packed: bool = False) -> Path:
    data = pickle.dumps(found)
    path.write_bytes(gzip.compress(data) if packed else data)
    return path
