"""Run a command on a machine without a GPU as if it had two: `run.py python -m pytest tests/gpu`.

It needs a CUDA build of torch, the toolkit's headers (in CUDA_HOME or /usr/local/cuda), g++ and
binutils, on Linux. torch's own CUDA code runs (caching allocator and its history, pinned memory,
streams, generators, refusals and their words), on `cudart.cpp`, `driver.cpp` and `nvml.cpp` in place
of NVIDIA's; `kernels.cpp` computes on the CPU. What a real device alone can show: speed, kernels that
run behind the host's back, the memory of libraries and contexts.

Variables: EMULATED_CUDA_BYTES, each device's memory (8 GiB if not set), and EMULATED_CUDA_OTHERS,
what other processes hold of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.utils import cpp_extension

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SOURCES = (*sorted(HERE.glob("*.cpp")), ROOT / "tests/accelerator/over_host.h", Path(__file__))
LIBRARIES = Path(torch.__file__).parent / "lib"
RUNTIME, DRIVER = "libcudart.so.13", "libcuda.so.1"


def toolkit() -> Path:
    """Give the folder of the CUDA toolkit's headers.

    Raises:
        SystemExit: there is none, or no CUDA build of torch of that version.
    """
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    if not (home / "crt" / "host_defines.h").exists():
        sys.exit(f"no CUDA headers in {home}; set CUDA_HOME")
    if not (torch.version.cuda or "").startswith("13."):
        sys.exit(f"torch {torch.__version__} is no build for CUDA 13")
    return home


def build() -> Path:
    """Build the stand-ins, once for each source and torch, and give their folder."""
    headers = toolkit()
    text = b"".join(one.read_bytes() for one in SOURCES) + torch.__version__.encode()
    home = ROOT / "build" / "emulation" / hashlib.sha256(text).hexdigest()[:16]
    if not (home / "made").exists():
        home.mkdir(parents=True, exist_ok=True)
        _stand_in(
            home, "cudart.cpp", RUNTIME, headers, _versioned(home), wanted=_wanted_of_runtime()
        )
        _stand_in(home, "driver.cpp", DRIVER, headers, [], wanted=_wanted_of_driver())
        _stand_in(home, "nvml.cpp", "libnvidia-ml.so.1", headers, [], wanted=set())
        _kernels(home)
        (home / "made").touch()
    return home


def _stand_in(
    home: Path, source: str, name: str, headers: Path, options: list[str], *, wanted: set[str]
) -> None:
    """Compile a library; what is wanted of it and not written refuses with "not supported"."""
    compiled = home / f"{source}.o"
    _compile("-c", f"-I{headers}", HERE / source, "-o", compiled)
    missing = sorted(wanted - _names(compiled, "--defined-only"))
    refusals = home / f"{source}.missing.cpp"
    lines = [f"int {one}() {{ return 801; }}\n" for one in missing]
    refusals.write_text('extern "C" {\n' + "".join(lines) + "}\n")
    _compile(
        "-shared", "-static-libstdc++", compiled, refusals,
        "-o", home / name, f"-Wl,-soname,{name}", *options, "-ldl",
    )  # fmt: skip


def _versioned(home: Path) -> list[str]:
    """torch asks for the runtime's symbols by the library's version."""
    script = home / "versions"
    script.write_text(f"{RUNTIME} {{ global: cuda*; __cuda*; emulated_*; local: *; }};\n")
    return [f"-Wl,--version-script,{script}"]


def _kernels(home: Path) -> None:
    _compile(
        "-shared", "-DNDEBUG", *(f"-I{path}" for path in cpp_extension.include_paths()),
        HERE / "kernels.cpp", "-o", home / "libemulatedkernels.so",
        f"-L{LIBRARIES}", "-ltorch", "-ltorch_cpu", "-lc10",
    )  # fmt: skip


def _compile(*options: object) -> None:
    command = [os.environ.get("CXX", "g++"), "-O1", "-std=c++20", "-fPIC", "-w", *map(str, options)]
    subprocess.run(command, check=True)


def _names(library: Path, *options: str) -> set[str]:
    """List the names of symbols, without their versions."""
    command = ["nm", *options, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines() if line.strip()}


def _wanted(libraries: Iterable[Path]) -> set[str]:
    return set().union(*(_names(one, "-D", "--undefined-only") for one in libraries))


def _wanted_of_runtime() -> set[str]:
    wanted = _wanted(LIBRARIES.glob("lib*torch*.so")) | _wanted(LIBRARIES.glob("libc10*.so"))
    return {one for one in wanted if re.match(r"(__)?cuda[A-Z]", one)}


def _wanted_of_driver() -> set[str]:
    """Those that torch links, and those that it looks up by name."""
    linked = _wanted([LIBRARIES / "libcaffe2_nvrtc.so"])
    text = (LIBRARIES / "libc10_cuda.so").read_bytes()
    named = {one.decode() for one in re.findall(rb"\0(cu[A-Z]\w+)(?=\0)", text)}
    return {one for one in linked | named if re.fullmatch(r"cu[A-Z]\w+", one)}


def environment() -> dict[str, str]:
    """Give the environment in which programs find the stand-ins."""
    home = str(build())
    paths = [home, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        **os.environ,
        "LD_PRELOAD": f"{home}/{RUNTIME}",
        "LD_LIBRARY_PATH": ":".join(paths),
        "NBINSPECT_EMULATED_CUDA": "1",
    }


if __name__ == "__main__":
    os.execvpe(sys.argv[1], sys.argv[1:], environment())
