"""A watched cell behaves as the plain cell does, in everything that a front end can see."""

from __future__ import annotations

import re

import pytest
from kerneldriver import Kernel, Reply

BODIES = {
    "value": "x = 1\nx + 1",
    "no value": "x = 1",
    "silenced value": "x = 1\nx;",
    "silenced with comment": "x = 1\nx ;  # not shown",
    "several values": "1\n2\ndisplay(3)\n4",
    "empty": "",
    "blank": "\n   \n",
    "comments": "# one\n\n# two",
    "docstring and future": "'doc'\nfrom __future__ import annotations\n__doc__",
    "print and stderr": "import sys\nprint('out')\nprint('err', file=sys.stderr)",
    "shell": "!echo hi\nfiles = !echo a b\nfiles",
    "line magics": "here = %pwd\nhere",
    "timed assignment": "y = %time 1\ny",
    "magic in a loop": "for i in range(2):\n    %pwd\n    !echo $i",
    "help": "len?",
    "display object": "from IPython.display import HTML\nHTML('<b>x</b>')",
    "indented": "    a = 1\n    if a:\n        a += 1\n    a",
    "prompts": ">>> a = 3\n>>> a",
    "percent lines in a string": 's = """\n%%toy\n%gpumem;\n"""\ns',
    "form feed": "a = 1\n\x0c\na",
    "no final newline, unicode": "größe = 'π'\ngröße",
    "crlf": "a = 1\r\na + 1",
    "await": "import asyncio\nawait asyncio.sleep(0)\n'awaited'",
    "await value": "import asyncio\nawait asyncio.sleep(0, 'value')",
    "async for": "async def numbers():\n    yield 1\n    yield 2\nasync for n in numbers():\n    print(n)",
    "async with": "import asyncio\nasync with asyncio.timeout(5):\n    print('in')",
    "raises": "a = 1\n\n1/0",
    "raises in a function": "def f(n):\n    return 1/n\n\n\nf(0)",
    "raises after await": "import asyncio\nawait asyncio.sleep(0)\n1/0",
    "raises on a long line": "(1 +\n 2 +\n undefined)",
    "chained": "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
    "group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "falsy exception": "class E(Exception):\n    def __bool__(self): return False\nraise E('x')",
    "assertion": "assert 1 == 2, 'no'",
    "usage error of another": "%pwdd",
    "unknown cell magic inside": "get_ipython().run_cell_magic('nosuch', '', '1')",
    "syntax error": "a = 1\nb = = 2",
    "unclosed": "a = (1,",
    "bad indent": "if 1:\n1",
    "return outside": "return 1",
    "system exit": "raise SystemExit(3)",
    "sys.exit": "import sys\nsys.exit('bye')",
    "broken repr": "class B:\n    def __repr__(self): raise RuntimeError('no repr')\nB()",
    "warns": "import warnings\nwarnings.warn('careful')",
    "nested cell": "get_ipython().run_cell('a = 7\\na')\n8",
    "nested failing cell": "get_ipython().run_cell('1/0')\n8",
    "nested blank cell": "get_ipython().run_cell('  ')\n8",
    "thread": "import threading\nt = threading.Thread(target=lambda: print('t'))\nt.start(); t.join()",
}


def normal(reply: Reply) -> list[tuple[str, str]]:
    """Leave out what differs from run to run: numbers of cells, file names, times, addresses."""
    changing = r"In\[\d+\]|\d+\.py|0x[0-9a-f]+|CPU times.*|Wall time.*|/tmp/ipykernel\S+"
    return [(kind, re.sub(changing, "_", text)) for kind, text in reply.shown]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_same_as_plain(kernel: Kernel, body: str) -> None:
    kernel.ok("import warnings\nwarnings.simplefilter('always')")  # not only the first time
    indent = re.match(r"[ \t]*", body)[0]
    plain = kernel.run(f"{indent}# %%toy\n{body}")
    out_plain = kernel.value(f"{plain.count} in Out and Out[{plain.count}] is _")
    watched = kernel.run("%%toy\n" + body)
    out_watched = kernel.value(f"{watched.count} in Out and Out[{watched.count}] is _")

    reports = [shown for shown in watched.shown if shown[1].startswith("<toy n=1")]
    never_ran = plain.error.startswith(("SyntaxError", "IndentationError", "_Incomplete"))
    assert len(reports) == (0 if never_ran else 1)
    assert watched.shown[-1:] == reports[-1:] or never_ran
    watched.shown = [shown for shown in watched.shown if shown not in reports]
    assert normal(watched) == normal(plain)
    assert watched.status == plain.status
    assert re.sub(r"\d+\.py", "", watched.error) == re.sub(r"\d+\.py", "", plain.error)
    assert watched.help == plain.help
    assert out_watched == out_plain
    assert kernel.value("toys.LOG") == "['open toy', 'close toy']"


def test_traceback_has_cell_line_and_source_and_no_frame_of_ours(kernel: Kernel) -> None:
    reply = kernel.run("%%toy\n\ndef inner():\n    return 1/0\n\ninner()")
    (traceback,) = reply.texts("error")
    assert f"Cell In[{reply.count}], line 6" in traceback
    assert f"Cell In[{reply.count}], line 4, in inner()" in traceback
    assert "----> 4     return 1/0" in traceback
    assert "nbinspect" not in traceback
    assert "hidden" not in traceback


def test_exception_is_the_users_own_object(kernel: Kernel) -> None:
    kernel.ok("import sys\nmine = ValueError('mine')\nmine.__suppress_context__ = True")
    for head in ("%%toy", "%%toy --fail exit", "%%time\n%%toy", "%%toy\n%%time"):
        assert kernel.run(f"{head}\nraise mine").error == "ValueError: mine"
        found = kernel.value("(sys.last_value is mine, mine.__cause__, mine.__context__)")
        assert found == "(True, None, None)"


def test_lines_of_the_cell_can_be_looked_up(kernel: Kernel) -> None:
    reply = kernel.ok("%%toy -n 2\na = 1\ndef where(): pass\n")
    lookup = "linecache.getline(where.__code__.co_filename, {})"
    kernel.ok("import linecache")
    assert kernel.value(lookup.format(3)) == repr("def where(): pass\n")
    assert kernel.value("where.__code__.co_firstlineno") == "3"
    assert kernel.value(lookup.format(1)) == repr("# %%toy -n 2\n")
    number = "get_ipython().compile._filename_map[where.__code__.co_filename]"
    assert kernel.value(number) == str(reply.count)


def test_history_keeps_what_was_typed(kernel: Kernel) -> None:
    reply = kernel.ok("%%toy -n 2\n'typed'")
    assert kernel.value(f"In[{reply.count}]") == repr("# %%toy -n 2\n'typed'")
    raw = f"get_ipython().history_manager.input_hist_raw[{reply.count}]"
    assert kernel.value(raw) == repr("%%toy -n 2\n'typed'")


def test_two_cells_in_a_row(kernel: Kernel) -> None:
    first, second = kernel.ok("%%toy -n 1\n1"), kernel.ok("%%toy -n 2\n2")
    assert first.shown == [("result", "1"), ("display", "<toy n=1 error=>")]
    assert second.shown == [("result", "2"), ("display", "<toy n=2 error=>")]


def test_leading_blank_lines_count_as_in_a_plain_cell(kernel: Kernel) -> None:
    plain, watched = kernel.run("\n \n# %%toy\n1/0"), kernel.run("\n \n%%toy\n1/0")
    assert normal(watched)[:1] == normal(plain)


def test_exit_ends_the_kernel_as_in_a_plain_cell(kernel: Kernel) -> None:
    # `exit` only sets this; the front end decides. So the kernel can go on here.
    assert normal(kernel.run("# %%toy\nexit")) == normal(kernel.run("%%toy\nexit"))[:1]
    kernel.ok("get_ipython().payload_manager.clear_payload()")
