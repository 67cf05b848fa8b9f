"""The package as a whole: its public names, and what importing it costs and brings along."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import nbinspect
import nbinspect.memory

MODULES = [info.name for info in pkgutil.walk_packages(nbinspect.__path__, "nbinspect.")]
HEAVY = {"IPython", "anywidget", "graphviz", "ipywidgets", "matplotlib", "numpy", "torch"}
TORCHLESS = [
    "nbinspect",
    "nbinspect.blocks",
    "nbinspect.memory",
    "nbinspect.memory.records",
    "nbinspect.records",
    "nbinspect.render",
    "nbinspect.render.html",
    "nbinspect.render.text",
]


def in_fresh_process(code: str) -> object:
    """Run `code`, which prints JSON, where nothing is imported yet."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_imported(name):
    assert importlib.import_module(name).__doc__


@pytest.mark.parametrize("package", [nbinspect, nbinspect.memory], ids=lambda p: p.__name__)
def test_all_is_exactly_what_is_exposed(package):
    for name in package.__all__:
        getattr(package, name)
    own = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert own <= set(package.__all__) <= own | {"__version__"}
    assert dir(package) == sorted(package.__all__)


def test_every_public_name_has_a_docstring():
    things = {name: getattr(nbinspect, name) for name in nbinspect.__all__}
    assert [name for name, thing in things.items() if not thing.__doc__] == []


def test_an_unknown_name_is_an_attribute_error():
    for package in (nbinspect, nbinspect.memory):
        with pytest.raises(AttributeError, match=f"'{package.__name__}' has no attribute 'gpumen'"):
            package.gpumen


def test_no_module_has_the_name_of_a_public_function():
    last_parts = {name.rpartition(".")[2] for name in MODULES}
    assert not last_parts & {*nbinspect.__all__, *nbinspect.memory.__all__}


def test_public_names_are_themselves_after_every_module_is_imported():
    for name in MODULES:
        importlib.import_module(name)
    names = [*nbinspect.__all__, *nbinspect.memory.__all__]
    things = [getattr(nbinspect, n, None) or getattr(nbinspect.memory, n) for n in names]
    assert not [thing for thing in things if isinstance(thing, ModuleType)]


@pytest.mark.parametrize("name", TORCHLESS)
def test_import_is_light(name):
    loaded = in_fresh_process(
        f"import sys, json; before = set(sys.modules); import {name}; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    assert not HEAVY & {module.partition(".")[0] for module in loaded}


def test_public_functions_answer_with_their_records():
    assert isinstance(nbinspect.gpumem(), nbinspect.MemorySnapshot)
    with nbinspect.memwatch() as watch:
        pass
    assert isinstance(watch.report, nbinspect.MemoryReport)
    assert isinstance(watch.report.before.diff(watch.report.after), nbinspect.MemoryDiff)
