"""What is built from a source distribution: with the compiled kernels, and without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNELS = "nbinspect/gradients/_kernels."


def run(code: str, folder: Path, **environment: str) -> None:
    """Have the build backend do something in a folder, as an installer does."""
    done = subprocess.run(
        [sys.executable, "-c", f"import setuptools.build_meta as backend; {code}"],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Unpack a source distribution, made of a copy so that nothing built before is found."""
    folder = tmp_path_factory.mktemp("source")
    built = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(ROOT / "nbinspect", folder / "copy" / "nbinspect", ignore=built)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "copy")
    run(f"backend.build_sdist({str(folder)!r})", folder / "copy")
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (one for one in folder.glob("nbinspect-*") if one.is_dir())
    return unpacked


def wheel(source: Path, to: Path, **environment: str) -> list[str]:
    """List the files of a wheel that is built of a copy of the source."""
    shutil.copytree(source, to / "source")
    run(f"backend.build_wheel({str(to)!r})", to / "source", **environment)
    (built,) = to.glob("*.whl")
    return zipfile.ZipFile(built).namelist()


def of_kernels(names: list[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in names if name.startswith(KERNELS)}


def test_a_wheel_has_every_file_of_the_package(source, tmp_path):
    names = wheel(source, tmp_path, CC="/no/such/compiler", CXX="/no/such/compiler")
    own = (path for path in (ROOT / "nbinspect").rglob("*.*") if "__pycache__" not in path.parts)
    expected = {str(path.relative_to(ROOT)) for path in own if path.suffix not in (".so", ".pyd")}
    assert expected <= set(names)
    assert any(name.endswith("steps.js") for name in names)


def test_without_a_compiler_the_kernels_are_left_out(source, tmp_path):
    names = wheel(source, tmp_path, CC="/no/such/compiler", CXX="/no/such/compiler")
    assert not of_kernels(names) & {"so", "pyd"}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_with_a_compiler_they_are_compiled(source, tmp_path):
    assert of_kernels(wheel(source, tmp_path)) & {"so", "pyd"}
