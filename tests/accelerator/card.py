"""The device "card" of `backend.cpp`: two of them, in this process, once `start` was called."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock
from torch.utils import cpp_extension

NAME = "card"
SOURCE = Path(__file__).with_name("backend.cpp")
SHARED = SOURCE.with_name("over_host.h")
CAPACITY = 4 << 30


def compiler() -> str | None:
    """Give the C++ compiler to build with; None if there is none."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


def lacking() -> str:
    """Say what is not here that the device needs, "" if nothing is."""
    if compiler() is None:
        return "no C++ compiler found; install g++"
    interface = "c10/core/CachingDeviceAllocator.h"
    headers = [Path(one) / interface for one in cpp_extension.include_paths()]
    if not any(one.exists() and "getMemoryInfo" in one.read_text() for one in headers):
        return "this torch has another C++ interface for devices; use 2.10 or newer"
    return ""


def library() -> Path:
    """Build the backend, once for each source and torch, and give its file.

    Raises:
        RuntimeError: it does not compile, with the compiler's words.
    """
    text = SOURCE.read_bytes() + SHARED.read_bytes() + torch.__version__.encode()
    key = hashlib.sha256(text).hexdigest()[:16]
    home = Path(__file__).parents[2] / "build" / "accelerator"
    home.mkdir(parents=True, exist_ok=True)
    built = home / f"card-{key}.so"
    with FileLock(home / "card.lock"):
        if not built.exists():
            _compile(built)
    return built


def _compile(to: Path) -> None:
    half_made = to.with_suffix(".part")
    command = [
        str(compiler()), "-O1", "-std=c++20", "-shared", "-fPIC", "-w", "-DNDEBUG",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-I{path}" for path in cpp_extension.include_paths()),
        *(f"-L{path}" for path in cpp_extension.library_paths()),
        str(SOURCE), "-o", str(half_made), "-ltorch", "-ltorch_cpu", "-lc10",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    half_made.rename(to)


@dataclass(frozen=True)
class Waits:
    """How often the host waited for the device, or gave it work.

    Attributes:
        to_host: tensors copied to the host.
        scalars: numbers read, as by `item`.
        shapes: results whose size depended on values, as of `nonzero`.
        waits: calls that wait for a stream, an event or the device.
        from_host: tensors copied to the device, for which the host need not wait.
        kernels: operations that the device was given.
    """

    to_host: int
    scalars: int
    shapes: int
    waits: int
    from_host: int
    kernels: int

    @property
    def reads(self) -> int:
        """All for which the host waited."""
        return self.to_host + self.scalars + self.shapes + self.waits


def start() -> types.ModuleType:
    """Make the device known to torch, as ``torch.card``, and give that module."""
    if hasattr(torch, NAME):
        return sys.modules[f"torch.{NAME}"]
    native = ctypes.CDLL(str(library()))
    native.card_state.restype = ctypes.c_int64
    native.card_capacity.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    native.card_take.restype = ctypes.c_void_p
    native.card_take.argtypes = [ctypes.c_int, ctypes.c_int64]
    native.card_give_back.argtypes = [ctypes.c_void_p]
    native.card_seed.argtypes = [ctypes.c_int, ctypes.c_uint64]
    native.card_state.argtypes = [ctypes.c_int, ctypes.c_void_p]
    native.card_set_state.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int64]
    torch.utils.rename_privateuse1_backend(NAME)
    native.card_start()
    module = _module(native)
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    return module


def _index(device: object) -> int:
    if device is None or device == NAME:
        return int(torch.accelerator.current_device_index())
    found = torch.device(device).index if not isinstance(device, int) else device
    return 0 if found is None else int(found)


def _module(native: ctypes.CDLL) -> types.ModuleType:
    """Make what torch asks of a device's Python side, and what tests ask of this one."""
    module = types.ModuleType(f"torch.{NAME}")

    def state(device: object = None) -> torch.Tensor:
        index = _index(device)
        room = (ctypes.c_uint8 * native.card_state(index, None))()
        native.card_state(index, room)
        return torch.frombuffer(bytearray(room), dtype=torch.uint8)

    def set_state(new: torch.Tensor, device: object = None) -> None:
        values = bytes(new.tolist())
        native.card_set_state(_index(device), values, len(values))

    def counted() -> Waits:
        numbers = (ctypes.c_int64 * 6)()
        native.card_counters(numbers)
        return Waits(*numbers)

    @contextmanager
    def room(free: int, *, index: int = 0, others: int = 0) -> Iterator[None]:
        """Let a device have so many bytes free, and so many held by other processes."""
        reserved = torch.accelerator.memory_reserved(index)
        native.card_capacity(index, reserved + free + others, others)
        try:
            yield
        finally:
            native.card_capacity(index, CAPACITY, 0)

    @contextmanager
    def workspace(size: int, *, index: int = 0) -> Iterator[None]:
        """Hold memory as a library does, which no tensor shows."""
        address = native.card_take(index, size)
        try:
            yield
        finally:
            native.card_give_back(address)

    def seed_all(seed: int) -> None:
        for index in range(2):
            native.card_seed(index, seed % 2**64)

    names = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "current_device": native.card_current,
        "set_device": lambda device: native.card_set_current(_index(device)),
        "_is_in_bad_fork": lambda: False,
        "manual_seed": lambda seed: native.card_seed(_index(None), seed),
        "manual_seed_all": seed_all,
        "get_rng_state": state,
        "set_rng_state": set_state,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "counted": counted,
        "room": room,
        "workspace": workspace,
    }
    vars(module).update(names)
    return module
