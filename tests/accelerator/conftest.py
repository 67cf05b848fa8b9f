"""Each file of this folder runs in a process of its own, where torch has a second device.

A device that torch knows changes all of a process, so the tests of other files are kept from it:
here a child runs pytest over the same items, and this process hands on its reports as they come.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import card
import pytest

HERE = Path(__file__).parent
REPORTS = "NBINSPECT_CARD_REPORTS"  # the file descriptor that a child writes its reports to
_CHILD = pytest.StashKey["Child | None"]()


class Child:
    """A pytest process that runs the items of one file.

    Args:
        items: all of that file that are to run.
    """

    def __init__(self, items: list[pytest.Item]) -> None:
        self.path = items[0].path
        read, write = os.pipe()
        config = items[0].config
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `stop`
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
                *(item.nodeid for item in items),
            ],
            cwd=config.rootpath,
            env={**env, REPORTS: str(write)},
            pass_fds=(write,),
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        os.close(write)
        self._reports = os.fdopen(read)

    def reports(self, item: pytest.Item) -> Iterator[Any]:
        """Give the reports of an item, the next in the order given; waits for them.

        Raises:
            AssertionError: the process has died, with the end of what it wrote.
        """
        for line in self._reports:
            data = json.loads(line)
            assert data["nodeid"] == item.nodeid
            yield item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
            if data["when"] == "teardown":
                return
        self._output.seek(0)
        raise AssertionError(self._output.read()[-3000:])

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reports.close()
        self._output.close()


def _is_child() -> bool:
    return REPORTS in os.environ


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if _is_child() or HERE not in item.path.parents:
        return None
    child = item.config.stash.get(_CHILD, None)
    if child is None or child.path != item.path:
        _stop(item.config)
        child = Child([one for one in item.session.items if one.path == item.path])
        item.config.stash[_CHILD] = child
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in child.reports(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if nextitem is None or nextitem.path != item.path:
        _stop(item.config)
    return True


def _stop(config: pytest.Config) -> None:
    child = config.stash.get(_CHILD, None)
    config.stash[_CHILD] = None
    if child is not None:
        child.stop()


def pytest_sessionfinish(session: pytest.Session) -> None:
    _stop(session.config)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _is_child():
        config = _SESSION[0].config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        os.write(int(os.environ[REPORTS]), (json.dumps(data) + "\n").encode())


_SESSION: list[pytest.Session] = []


def pytest_collection(session: pytest.Session) -> None:
    """Make the device before any test file is imported, in the child."""
    if _is_child():
        _SESSION.append(session)
        card.start()


@pytest.fixture
def torch_card() -> ModuleType:
    """Give ``torch.card``, with its counters at nothing."""
    module = card.start()
    module.counted()
    return module
