"""Who holds each live byte: the census behind `gpumem`, leak hunting and memory reports.

`tags` says what certain objects make of all below them, `search` finds the best name of every
object for every kind of holder, `held` turns that into plain values.
"""

from nbinspect.holders.held import Census, Claim, HeldStorage, census
from nbinspect.holders.tags import KINDS

__all__ = ["KINDS", "Census", "Claim", "HeldStorage", "census"]
