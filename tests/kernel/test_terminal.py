"""The same magics in a plain IPython in a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SETUP = (
    f"import sys; sys.path.insert(0, {str(HERE)!r}); import toys; toys.add()\n%load_ext nbinspect\n"
)


def ipython(typed: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Type lines into an IPython; a cell magic ends with two blank lines there."""
    environ = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=nocolor", *arguments]
    return subprocess.run(
        command,
        input=typed,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
        env={**environ, "IPYTHONDIR": str(tmp_path)},
    )


def type_in(lines: str, tmp_path: Path) -> tuple[str, str]:
    done = ipython(f"{SETUP}{lines}\nexit\n", tmp_path, "--simple-prompt", "--no-confirm-exit")
    assert done.returncode == 0
    return done.stdout, done.stderr


def test_watched_cells(tmp_path: Path) -> None:
    out, err = type_in(
        "%%toy\nx = 5\nx + 1\n\n\n"
        "%%toy\n\n1/0\n\n\n"
        "%%toy --nope\nprint('ran ' * 2)\n\n\n"
        "%%toy -n 4\nimport asyncio\nawait asyncio.sleep(0, 'awaited')\n\n\n"
        "'still ' + str(toys.OPEN)\n",
        tmp_path,
    )
    assert "Out[3]: 6\n<toy n=1 error=>" in out
    assert "Cell In[4], line 3\n" in out
    assert "ZeroDivisionError: division by zero\n<toy n=1 error=ZeroDivisionError>" in out
    assert "ran ran" not in out
    assert err.strip() == "UsageError: %%toy: unknown option --nope (see %%toy?)"
    assert "Out[6]: 'awaited'\n<toy n=4 error=>" in out
    assert "Out[7]: 'still []'" in out


def test_line_magics_show_once(tmp_path: Path) -> None:
    out, err = type_in("%toyline\nm = %toyline -n 2\nm\n%toyline -n 3;\nOut[6].n + 40\n", tmp_path)
    assert err == ""
    assert out.count("<line n=1 error=>\nOut[3]: ToyReport") == 1
    assert out.count("<line n=1 error=>") == 1
    assert out.count("<line n=2 error=>") == 2
    assert "Out[5]: <line n=2 error=>" in out
    assert "<line n=3" not in out
    assert "Out[7]: 43" in out


def test_command_line(tmp_path: Path) -> None:
    done = ipython("", tmp_path, "-c", SETUP + "%toyline --nope")
    assert done.returncode == 1
    assert done.stderr.strip() == "UsageError: %toyline: unknown option --nope (see %toyline?)"
    cell = "ran = get_ipython().run_cell('%%toy\\nprint(40 + 2)')"
    done = ipython("", tmp_path, "-c", SETUP + cell)
    assert done.stdout == "42\n<toy n=1 error=>\n"


def test_the_prompt_waits_for_the_body(tmp_path: Path) -> None:
    # prompt_toolkit, which a real terminal uses, asks this after every Enter.
    ask = "get_ipython().check_complete({!r})[0]"
    typed = ["%%toy", "%%toy -n 2\nx = 1", "%%toy\nx = 1\n\n", "x = 1"]
    out, _ = type_in("\n".join(ask.format(text) for text in typed), tmp_path)
    answers = [line.split(": ")[-1] for line in out.splitlines() if "Out[" in line]
    assert answers == ["'incomplete'", "'incomplete'", "'complete'", "'complete'"]
