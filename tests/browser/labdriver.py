"""Drive a real JupyterLab: start it, open a notebook, run cells, look at the page.

    with lab_server(root) as server, chromium() as context:
        with lab_page(server, context, root / "demo.ipynb") as lab:
            lab.run_cell(0)

Server and browser take seconds to start and serve all tests; a page, with its own kernel, serves
one. The server binds to 127.0.0.1 on a free port and keeps its settings in a folder of its own;
the browser resolves no name outside this machine, and `Lab.outside` lists who tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Locator, Page, expect, sync_playwright

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Blocking by page.route() would turn the cache off, and JupyterLab's files are megabytes.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
QUIET = {
    "@jupyterlab/apputils-extension/notification": {
        "checkForUpdates": False,
        "fetchNews": "false",
        "doNotDisturbMode": True,
    }
}


def find_chromium() -> str | None:
    """Give a named browser or the system's; None lets playwright take its own."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("E2E_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@dataclass
class LabServer:
    """A running server and how to ask it."""

    url: str
    token: str
    root: Path
    log: Path
    process: subprocess.Popen[bytes]

    def call(self, method: str, path: str) -> Any:
        """Ask the server's REST interface."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=15) as reply:
            body = reply.read()
        return json.loads(body) if body else None


@contextlib.contextmanager
def lab_server(root: Path) -> Iterator[LabServer]:
    """Run JupyterLab on the notebooks in `root`, with none of the user's own settings."""
    home = Path(tempfile.mkdtemp(prefix="nbinspect-lab-"))
    _write_settings(home / "settings")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token, log = secrets.token_hex(16), home / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            _command(root, port, token),
            env=_environment(home),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = LabServer(f"http://127.0.0.1:{port}", token, root, log, process)
    try:
        _wait_until_up(server)
        yield server
    finally:
        _stop(process)
        shutil.rmtree(home, ignore_errors=True)


def _write_settings(folder: Path) -> None:
    for name, values in QUIET.items():
        file = folder / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values))


def _command(root: Path, port: int, token: str) -> list[str]:
    return [
        *(sys.executable, "-m", "jupyterlab", "--no-browser"),
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={root}",
        "--ServerApp.allow_root=True",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]


def _environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


def _wait_until_up(server: LabServer, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(urllib.error.URLError, OSError):
            server.call("GET", "/api/status")
            return
        if server.process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"JupyterLab did not start:\n{server.log.read_text()[-4000:]}")
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server; on SIGTERM it shuts its kernels down too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def chromium() -> Iterator[BrowserContext]:
    """Run the browser with a profile on disk, which keeps JupyterLab's code compiled."""
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=find_chromium(),
            args=CHROMIUM_FLAGS,
            viewport={"width": 1280, "height": 1000},
        )
        try:
            yield context
        finally:
            context.close()


@dataclass
class Lab:
    """A notebook in the page.

    Attributes:
        page: the browser's page.
        server: what the page talks to.
        path: the notebook's file.
        console: what the page wrote to its console.
        outside: the addresses outside this machine that the page asked for.
    """

    page: Page
    server: LabServer
    path: Path
    console: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def command(self, name: str, *, wait: bool = True, **args: Any) -> None:
        """Run a command of JupyterLab's; without `wait`, return while a cell still runs."""
        call = f"window.jupyterapp.commands.execute({name!r}, {json.dumps(args)})"
        self.page.evaluate(f"() => {call}" if wait else f"() => {{ {call}; }}")

    def run_all(self) -> None:
        """Run all cells."""
        self.command("notebook:run-all-cells")

    def run_cell(self, index: int, *, wait: bool = True) -> None:
        """Run one cell, wherever the page is scrolled."""
        self.page.evaluate(
            "i => { const nb = window.jupyterapp.shell.currentWidget.content;"
            "  nb.deselectAll(); nb.activeCellIndex = i; nb.scrollToItem?.(i); }",
            index,
        )
        self.command("notebook:run-cell", wait=wait)

    def interrupt(self) -> None:
        """Interrupt the running cell."""
        self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.interrupt()"
        )

    def save(self) -> None:
        """Save the notebook and wait until it is on disk."""
        self.command("docmanager:save")

    def dark(self, on: bool = True) -> None:
        """Change the theme."""
        theme = "JupyterLab Dark" if on else "JupyterLab Light"
        self.command("apputils:change-theme", theme=theme)
        expect(self.page.locator("body")).to_have_attribute(
            "data-jp-theme-light", "false" if on else "true"
        )

    def cell(self, index: int) -> Locator:
        """Find a cell by its position."""
        return self.page.locator(f'.jp-Cell[data-windowed-list-index="{index}"]')

    def wait_idle(self, timeout_s: float = 60) -> None:
        """Wait until the kernel is idle."""
        self.page.wait_for_function(
            "() => window.jupyterapp.shell.currentWidget?.sessionContext?.session"
            "?.kernel?.status === 'idle'",
            timeout=timeout_s * 1000,
        )

    def close(self) -> Path:
        """Close the page and end the kernel; may be called twice."""
        self.page.close()
        for session in self.server.call("GET", "/api/sessions"):
            if session["path"] == self.path.name:
                self.server.call("DELETE", f"/api/sessions/{session['id']}")
        return self.path

    def errors(self) -> list[str]:
        """Give every traceback and everything written to stderr."""
        return self.page.locator(
            '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.error"],'
            '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]'
        ).all_inner_texts()


def write_notebook(path: Path, *sources: str) -> Path:
    """Write a notebook of these cells that was never run."""
    never_run = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    notebook = {
        "cells": [{**never_run, "id": f"cell-{i}", "source": one} for i, one in enumerate(sources)],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(notebook))
    return path


@contextlib.contextmanager
def lab_page(server: LabServer, context: BrowserContext, notebook: Path) -> Iterator[Lab]:
    """Open `notebook` alone in a page; end its kernel afterwards."""
    page = context.new_page()
    page.set_default_timeout(20_000)
    lab = Lab(page, server, notebook)
    _listen(lab)
    try:
        page.goto(f"{server.url}/doc/tree/{notebook.name}?token={server.token}")
        expect(page.locator(".jp-NotebookPanel .jp-Cell").first).to_be_visible(timeout=60_000)
        lab.wait_idle()
        yield lab
    finally:
        lab.close()


def record_failure(lab: Lab, artifacts: Path) -> None:
    """Keep a picture of the page, and what it and the server logged."""
    stem = artifacts / f"{lab.path.stem}-failed"
    if not lab.page.is_closed():
        lab.page.screenshot(path=f"{stem}.png", full_page=True)
    log = [*lab.console, "", lab.server.log.read_text()]
    stem.with_suffix(".txt").write_text("\n".join(log))


def _listen(lab: Lab) -> None:
    def note(request: Any) -> None:
        if not request.url.startswith((lab.server.url, "data:", "blob:")):
            lab.outside.append(request.url)

    lab.page.on("request", note)
    lab.page.on("console", lambda message: lab.console.append(f"{message.type}: {message.text}"))
    lab.page.on("pageerror", lambda error: lab.console.append(f"pageerror: {error}"))
