"""For every test: nothing may be left behind, and what a machine lacks is said in one line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["leftovers"]

# How fast the machine is at drawing examples is not what the properties are about.
settings.register_profile(
    "nbinspect",
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Set the profile before each file: torch's own test tools load another when imported."""
    if isinstance(collector, pytest.Module):
        settings.load_profile("nbinspect")


HERE = Path(__file__).parent
_LACKING = pytest.StashKey[dict[str, str]]()


def find_browser() -> str | None:
    """Give the browser to test with: a named one, the system's, or playwright's own."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("E2E_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    return found or _playwrights_own()


def _playwrights_own() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def _lacks_browser() -> str:
    if find_browser():
        return ""
    return "no chromium found; install one (or run .venv/bin/playwright install chromium)"


def _lacks_gpu() -> str:
    import torch

    return "" if torch.cuda.is_available() else "no CUDA device; run them where there is one"


def _lacks_accelerator() -> str:
    import card

    return card.lacking()


NEEDS = {"browser": _lacks_browser, "gpu": _lacks_gpu, "accelerator": _lacks_accelerator}


def pytest_configure() -> None:
    """Say before any test runs that what is required is not there."""
    if os.environ.get("NBINSPECT_BROWSER") == "required" and not find_browser():
        raise pytest.UsageError("browser tests are required, and there is no chromium on the PATH")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the folders in `NEEDS`, and take out what cannot run here."""
    lacking = config.stash.setdefault(_LACKING, {})
    for need, lacks in NEEDS.items():
        own = [item for item in items if (HERE / need) in item.path.parents]
        for item in own:
            item.add_marker(need)
        if own and (why := lacks()):
            lacking[need] = f"{len(own)} {need} tests skipped: {why}"
            items[:] = [item for item in items if item not in own]
            config.hook.pytest_deselected(items=own)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist has left out; all leave out the same."""
    lacking = node.workeroutput.get("lacking", {}) if hasattr(node, "workeroutput") else {}
    node.config.stash.setdefault(_LACKING, {}).update(lacking)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell what was left out, where this is a worker of pytest-xdist."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["lacking"] = session.config.stash.get(_LACKING, {})


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say in one line each what was left out, and how to have it."""
    for line in config.stash.get(_LACKING, {}).values():
        terminalreporter.write_line(line, yellow=True)
