"""One server and one browser for all browser tests, one page and kernel for each notebook."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from labdriver import Lab, LabServer
    from playwright.sync_api import Browser, BrowserContext

ARTIFACTS = Path(__file__).parent.parent / "artifacts"


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
def browser() -> Iterator[Browser]:
    from labdriver import chromium

    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def context(browser: Browser) -> BrowserContext:
    """One context, so that all pages share the cache."""
    return browser.new_context(viewport={"width": 1280, "height": 1000})


@pytest.fixture
def write_notebook(server: LabServer, request: pytest.FixtureRequest) -> Callable[..., Path]:
    import nbformat

    def write(*sources: str) -> Path:
        path = server.root / (re.sub(r"\W+", "-", request.node.name) + ".ipynb")
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in sources],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        nbformat.write(notebook, path)
        return path

    return write


@pytest.fixture
def open_notebook(
    server: LabServer,
    context: BrowserContext,
    artifacts: Path,
    write_notebook: Callable[..., Path],
) -> Iterator[Callable[..., Lab]]:
    """Open a notebook of these cell sources, or one that is there already."""
    from labdriver import lab_page

    with contextlib.ExitStack() as stack:

        def open_(*sources: str | Path) -> Lab:
            path = sources[0] if isinstance(sources[0], Path) else write_notebook(*sources)
            return stack.enter_context(lab_page(server, context, path, artifacts))

        yield open_
