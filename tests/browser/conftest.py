"""One server and one browser for all browser tests, one page and kernel for each notebook."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from leftovers import _FAILED as FAILED

if TYPE_CHECKING:
    from labdriver import Lab, LabServer
    from playwright.sync_api import BrowserContext

if os.environ.get("NBINSPECT_BROWSER") == "required":
    importlib.import_module("playwright.sync_api")  # a failure, where the tests would be skipped

ARTIFACTS = Path(__file__).parent.parent / "artifacts"


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """Look at nothing: nbinspect runs in the kernel, and the browser's driver starts threads."""


@pytest.fixture(scope="session")
def artifacts() -> Path:
    ARTIFACTS.mkdir(exist_ok=True)
    return ARTIFACTS


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    from labdriver import lab_server

    with lab_server(tmp_path_factory.mktemp("notebooks")) as running:
        yield running


@pytest.fixture(scope="session")
def context() -> Iterator[BrowserContext]:
    """One context, so that all pages share the cache."""
    from labdriver import chromium

    with chromium() as running:
        yield running


@pytest.fixture
def open_notebook(
    server: LabServer,
    context: BrowserContext,
    artifacts: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., Lab]]:
    """Open a notebook of these cell sources, or one that is there already."""
    from labdriver import lab_page, record_failure, write_notebook

    labs: list[Lab] = []
    with contextlib.ExitStack() as stack:

        def open_(*sources: str | Path) -> Lab:
            path = server.root / (re.sub(r"\W+", "-", request.node.name) + ".ipynb")
            path = sources[0] if isinstance(sources[0], Path) else write_notebook(path, *sources)
            labs.append(stack.enter_context(lab_page(server, context, path)))
            return labs[-1]

        yield open_
        if request.node.stash.get(FAILED, False):
            for lab in labs:
                record_failure(lab, artifacts)
