"""Loading and unloading leave a shell as it was, in any order and with any copy of the modules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kerneldriver import Kernel, start_with_toys

TRACES = "toys.traces()"
LOAD, UNLOAD, RELOAD = "%load_ext nbinspect", "%unload_ext nbinspect", "%reload_ext nbinspect"
REIMPORT = """
import sys
for name in [name for name in sys.modules if name.split('.')[0] == 'nbinspect']:
    del sys.modules[name]
del name
import nbinspect
"""
CALL_LOAD = "import nbinspect; nbinspect.load_ipython_extension(get_ipython())"
CALL_UNLOAD = "import nbinspect; nbinspect.unload_ipython_extension(get_ipython())"
OURS = (
    "{kind for kind in ('line', 'cell') for name in get_ipython().magics_manager.magics[kind]"
    " if name in ('gpumem', 'memwatch', 'toy', 'toyline')}"
)


@pytest.fixture(scope="module")
def loading_kernel() -> Iterator[Kernel]:
    kernel = start_with_toys()
    yield kernel
    kernel.stop()


@pytest.fixture
def kernel(loading_kernel: Kernel) -> Kernel:
    loading_kernel.ok(UNLOAD)
    return loading_kernel


@pytest.mark.parametrize(
    "cells",
    [
        [LOAD],
        [LOAD, LOAD],
        [LOAD, RELOAD],
        [RELOAD, RELOAD],
        [LOAD, CALL_LOAD],
        [CALL_LOAD, CALL_LOAD],
        [LOAD, REIMPORT, RELOAD],
        [LOAD, REIMPORT, CALL_LOAD],
        [LOAD + "\n" + RELOAD + "\n" + UNLOAD + "\n" + LOAD],
    ],
)
def test_loading_is_idempotent_and_unloading_removes_everything(
    kernel: Kernel, cells: list[str]
) -> None:
    before = kernel.value(TRACES)
    kernel.ok(LOAD)
    loaded = kernel.value(TRACES).replace("'toy'", "").replace("'toyline'", "")
    kernel.ok(UNLOAD)
    for cell in cells:
        kernel.ok(cell)
    assert kernel.value(OURS) in ("{'line', 'cell'}", "{'cell', 'line'}")
    if REIMPORT not in cells:  # a new table has no toys
        assert kernel.value(TRACES).replace("'toy'", "").replace("'toyline'", "") == loaded
        assert kernel.ok("%%toy\n1").texts("display") == ["<toy n=1 error=>"]
        assert kernel.ok("%toyline").texts("display") == ["<line n=1 error=>"]
    kernel.ok(UNLOAD)
    kernel.ok(CALL_UNLOAD)
    assert kernel.value(TRACES) == before
    if REIMPORT in cells:
        kernel.ok(REIMPORT + "import importlib, toys; importlib.reload(toys).add()")


def test_a_magic_of_the_users_comes_back(kernel: Kernel) -> None:
    kernel.ok(
        "from IPython.core.magic import register_line_magic\n"
        "@register_line_magic\n"
        "def gpumem(line): return 'my own'\n"
        "del gpumem"
    )
    assert kernel.ok("%gpumem").texts("result") == ["'my own'"]
    kernel.ok(LOAD)
    assert "what is in memory" in kernel.ok("%gpumem?").help.lower()
    kernel.ok(UNLOAD)
    assert kernel.ok("%gpumem").texts("result") == ["'my own'"]
    kernel.ok("del get_ipython().magics_manager.magics['line']['gpumem']")


def test_unloading_after_somebody_emptied_ipythons_lists(kernel: Kernel) -> None:
    kernel.ok(LOAD)
    kernel.ok(
        "shell = get_ipython()\n"
        "for found in (*shell.events.callbacks.values(), shell.Completer.custom_matchers):\n"
        "    found[:] = [f for f in found if 'nbinspect' not in str(f)]\n"
        "del shell, found"
    )
    assert kernel.ok(UNLOAD).shown == []
    assert kernel.value(OURS) == "set()"


def test_unloading_what_was_not_loaded(kernel: Kernel) -> None:
    assert "not loaded" in kernel.ok(UNLOAD).text("stdout")
    kernel.ok(CALL_UNLOAD)


def test_loading_imports_nothing_heavy() -> None:
    kernel = Kernel()
    try:
        kernel.ok("import sys\n" + LOAD)
        heavy = (
            "{'torch', 'numpy', 'anywidget', 'ipywidgets', 'PIL', 'graphviz'} & set(sys.modules)"
        )
        assert kernel.value(heavy) == "set()"
        # ipykernel itself may bring in a part of matplotlib
        assert kernel.value("'matplotlib.figure' in sys.modules") == "False"
        kernel.complete("%gpumem --device ")
        kernel.ok("%gpumem?")
        assert kernel.value("'torch' in sys.modules") == "False"
    finally:
        kernel.stop()


def test_no_magic_replaces_a_built_in_one() -> None:
    kernel = Kernel()
    try:
        kernel.ok("from nbinspect.magics import LINE_MAGICS, WATCHES")
        built_in = "{n for named in get_ipython().magics_manager.magics.values() for n in named}"
        assert kernel.value(f"'time' in {built_in}") == "True"
        assert kernel.value(f"{{*LINE_MAGICS, *WATCHES}} & {built_in}") == "set()"
    finally:
        kernel.stop()
