"""What the texts say is there is there, and they speak of nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nbinspect.magics import LINE_MAGICS, WATCHES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
MAGICS = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("nbinspect/magics/*.py"))
# Spelled in two halves, so that this file does not find itself.
FOREIGN = ["sha" + "red/", "/wo" + "rk/", "TO" + "DO", "FIX" + "ME"]


def text_files() -> list[Path]:
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    binary = {".png", ".gz", ".pickle", ".npz"}
    paths = (ROOT / name for name in listed.split("\0") if name)
    return [path for path in paths if path.is_file() and path.suffix not in binary]


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_every_make_command_exists(text):
    named = set(re.findall(r"\bmake ([a-z]+)\b", text))
    assert named
    assert named <= set(re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[0].split())


def test_every_magic_and_its_options_exist():
    named = re.findall(r"%%?(?!load_ext)([a-z]\w+)((?: --\w+)*)", README)
    assert (
        {"gpumem", "gradtable", "gradwatch", "memwatch"}
        < {name for name, _ in named}
        <= {*LINE_MAGICS, *WATCHES}
    )
    options = {option for _, line in named for option in line.split()}
    assert options
    assert [option for option in options if f'"{option}"' not in MAGICS] == []


def test_the_example_answers_as_the_page_says():
    """All but the bars of the whole machine, which is another one every time."""
    code = README.split("```python\n%load_ext nbinspect\n", 1)[1].split("```", 1)[0]
    said = README.split("```text\n", 1)[1].split("\n```", 1)[0]
    code += "\nimport nbinspect\nprint(nbinspect.gpumem(device='cpu'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    machine = re.compile(r"^cpu in all.*?\n\n", re.MULTILINE | re.DOTALL)
    assert machine.sub("", done.stdout).strip() == machine.sub("", said).strip()


def test_the_nan_is_explained_as_the_page_says():
    section = README.split("## Where did the NaN come from?", 1)[1]
    cells = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2]
    said = section.split("```text\n", 1)[1].split("\n```", 1)[0]
    code = (
        "from IPython.core.interactiveshell import InteractiveShell as Shell\n"
        f"for cell in {['%load_ext nbinspect', *cells]!r}:\n"
        "    Shell.instance().run_cell(cell, store_history=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert " ".join(said.split()) in " ".join(done.stdout.replace("In[3]", "In[2]").split())


def test_every_linked_file_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README + CONTRIBUTING)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_dependency_is_pinned():
    pins = re.findall(r"^([a-z0-9-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = set(re.findall(r'^ +"([a-z0-9-]+)>=', project, re.MULTILINE))
    assert {"torch", "ruff", "jupyterlab"} <= wanted
    assert wanted <= set(pins)


@pytest.mark.parametrize("word", FOREIGN)
def test_no_text_speaks_of_anything_else(word):
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in text_files()}
    assert [str(path.relative_to(ROOT)) for path, text in texts.items() if word in text] == []
