"""How code spells what a label reads: labels follow torch's names, ``net.0.weight``."""

from __future__ import annotations

import re

from torch import nn

from nbinspect import notebook
from nbinspect.heapgraph.letting_go import is_assignable
from nbinspect.heapgraph.objects import isinstance_of, own_dict
from nbinspect.heapgraph.parts import MEMBER_DICTS

LISTS = (nn.Sequential, nn.ModuleList, nn.ParameterList)


def as_code(label: str) -> str:
    """Spell a label so that it can stand left of an equals sign, "" where that cannot be."""
    label = re.sub(r"\.__dict__\['(\w+)'\]$", r".\1", label)  # what a class's own lets go of
    return label if is_assignable(label) else _indexed(label)


def _indexed(label: str) -> str:
    """Walk down a model by the names in a label; give "" where a number is no index."""
    base, *names = label.split(".")
    value, code = notebook.user_namespace().get(base), base
    for name in names:
        own = own_dict(value) or {}
        if name.isdigit():
            members = own.get("_modules") or own.get("_parameters") or {}
            if not isinstance_of(value, *LISTS) or list(members)[int(name) :][:1] != [name]:
                return ""
        places = [own, *(own.get(key) or {} for key in MEMBER_DICTS)]
        value = next((one[name] for one in places if name in one), None)
        code += f"[{name}]" if name.isdigit() else f".{name}"
    return code if value is not None else ""
