"""Where and with what the figures were taken."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path

import psutil

DISTRIBUTIONS = (
    "nbinspect",
    "torch",
    "numpy",
    "ipython",
    "ipykernel",
    "ipywidgets",
    "anywidget",
    "matplotlib",
    "psutil",
    "pytorch_memlab",
    "torchview",
    "torchviz",
    "torchlens",
    "transformers",
)


def lines() -> list[str]:
    """Describe the machine and every version that matters."""
    ram = psutil.virtual_memory().total / (1 << 30)
    return [
        f"Machine: {_cores()}, {ram:.1f} GiB RAM, {platform.platform()}",
        f"Versions: Python {platform.python_version()}, {', '.join(_versions())}",
    ]


def moment() -> str:
    """Say what day it is, on what processor, and how busy the machine."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return f"Measured {today} on {_cores()}; load as it began: {_load()}"


def _cores() -> str:
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{n} cores, {_cpu()}"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in names if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown CPU"


def _load() -> str:
    if not hasattr(os, "getloadavg"):
        return "unknown"
    return f"{os.getloadavg()[0]:.1f} runnable tasks over the last minute, without this one"


def _versions() -> list[str]:
    found = []
    for name in DISTRIBUTIONS:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} {_own_version()}" if name == "nbinspect" else f"no {name}")
    return found


def _own_version() -> str:
    import nbinspect

    return nbinspect.__version__
