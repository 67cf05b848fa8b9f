"""Every magic of nbinspect: parse, call the function of the same name, display.

To add one, write an entry in `table`: `LINE_MAGICS` for a line magic, `WATCHES` for a cell magic.
The rest comes with it: help, completion, usage errors, ``-o``, showing the record once, running
the user's cell, and being taken out again.

    table        what each magic is called, which options it takes and what it does
    options      reads a magic's line, or refuses it in one line
    cells        runs the user's cell inside its watches: the one way for all cell magics
    showing      shows a record once
    completion   completes options with Tab
    extension    puts everything into a shell, and takes everything out
"""

from nbinspect.magics.extension import load_ipython_extension, unload_ipython_extension
from nbinspect.magics.table import LINE_MAGICS, WATCHES, LineMagic, Watch, WatchMagic

__all__ = [
    "LINE_MAGICS",
    "WATCHES",
    "LineMagic",
    "Watch",
    "WatchMagic",
    "load_ipython_extension",
    "unload_ipython_extension",
]
