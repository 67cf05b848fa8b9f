"""Lets ``%gpumem;`` be written without a space, as ``gpumem();`` is."""

from __future__ import annotations

import tokenize
from tokenize import TokenInfo

from IPython.core.inputtransformer2 import TokenTransformBase

from nbinspect.magics.table import LINE_MAGICS

_INDENTS = (tokenize.INDENT, tokenize.DEDENT)


class LoneSemicolon(TokenTransformBase):
    """Puts a space before the ``;``, which IPython would take for a part of the magic's name."""

    priority = 4  # before IPython's own, which would use up the line

    @classmethod
    def find(cls, tokens_by_line: list[list[TokenInfo]]) -> LoneSemicolon | None:
        """Find ``%name;`` at the start of a line or after ``=``."""
        for tokens in tokens_by_line:
            for before, percent, name, end in zip(
                [None, *tokens], tokens, tokens[1:], tokens[2:], strict=False
            ):
                starts = before is None or before.string == "=" or before.type in _INDENTS
                words = percent.string == "%" and end.string == ";" and name.end == end.start
                if starts and words and name.string in LINE_MAGICS:
                    return cls(percent.start)
        return None

    def transform(self, lines: list[str]) -> list[str]:
        """Insert the space."""
        line = lines[self.start_line]
        at = line.index(";", self.start_col)
        line = f"{line[:at]} {line[at:]}"
        return [*lines[: self.start_line], line, *lines[self.start_line + 1 :]]
