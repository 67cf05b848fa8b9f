"""How long does a user wait for the import, and for %load_ext?"""

from __future__ import annotations

import sys

from benchmarks.fresh import output
from benchmarks.tables import Spread, Table, verdict

IMPORT = "import time; began = time.perf_counter(); import nbinspect"
LOAD = "import time{also}; began = time.perf_counter(); get_ipython().run_line_magic('load_ext', 'nbinspect')"
SHOW = "; print(time.perf_counter() - began)"
CASES = {
    "import nbinspect, in a fresh Python": (["-c", IMPORT + SHOW], 0.3),
    "%load_ext nbinspect, in a fresh IPython": (
        ["-m", "IPython", "--quick", "-c", LOAD.format(also="") + SHOW],
        None,
    ),
    "%load_ext nbinspect, after import torch": (
        ["-m", "IPython", "--quick", "-c", LOAD.format(also=", torch") + SHOW],
        0.3,
    ),
}


def tables(*, quick: bool) -> list[Table]:
    """Load in fresh processes."""
    n_times = 2 if quick else 20
    table = Table("load: importing nbinspect", ("what", "wall, ms", "goal"))
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(n_times):
        for name, (arguments, _limit) in CASES.items():
            found[name].append(float(output([sys.executable, *arguments])))
    for name, seconds in found.items():
        spread, limit = Spread.of(seconds), CASES[name][1]
        goal = verdict(spread.median, limit, " s") if limit else ""
        table.add(name, spread.show(1e3, digits=1), goal)
    table.notes.append(
        f"Median [quartiles] of {n_times} new processes each, in turn; wall time of the statement "
        "alone; files are in the disk cache."
    )
    return [table]
