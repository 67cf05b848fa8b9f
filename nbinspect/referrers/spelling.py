"""How code spells what a label reads: labels follow torch's names, ``net.0.weight``."""

from __future__ import annotations

import re

from nbinspect.heapgraph import resolving
from nbinspect.heapgraph.letting_go import is_assignable


def as_code(label: str) -> str:
    """Spell a label so that it can stand left of an equals sign, "" where that cannot be."""
    label = re.sub(r"\.__dict__\['(\w+)'\]$", r".\1", label)  # what a class's own lets go of
    code = label if is_assignable(label) else resolving.as_code(label)
    return code if is_assignable(code) else ""
