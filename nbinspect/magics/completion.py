"""Completes the options of our magics with Tab."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)

from nbinspect.magics.options import ExpressionOptions, Options
from nbinspect.magics.table import LINE_MAGICS, WATCHES, LineMagic, WatchMagic

_LINE = re.compile(r"(?:\s*|.*=\s*)(%{1,2})(\w+)\s(?:.*\s)?(\S*)$")


def make_matcher(completer: Any) -> Any:
    """Make the matcher for the completer of one shell."""

    def nbinspect_options(context: CompletionContext) -> SimpleMatcherResult:
        before = context.line_with_cursor[: context.cursor_position]
        found = _LINE.match(before)
        options = _options(found[1], found[2]) if found else None
        if not (found and options):
            return SimpleMatcherResult(completions=[], suppress=False)  # IPython writes into it
        word = found[3]
        if isinstance(options, ExpressionOptions) and not word.startswith("-"):
            return _names(completer, word)
        candidates = _candidates(options, before.split()[: -1 if word else None], word)
        return SimpleMatcherResult(
            completions=[SimpleCompletion(text=c, type="param") for c in candidates],
            suppress=True,  # no file name or variable makes sense here
            matched_fragment=word,
        )

    return context_matcher()(nbinspect_options)


def _names(completer: Any, word: str) -> SimpleMatcherResult:
    """Complete a name inside an expression, which IPython does after a magic's line only partly."""
    name = re.search(r"[\w.]*$", word)
    fragment = name[0] if name else ""
    find = completer.attr_matches if "." in fragment else completer.global_matches
    found = find(fragment) if fragment else []
    return SimpleMatcherResult(
        completions=[SimpleCompletion(text=one, type="param") for one in found],
        matched_fragment=fragment,
    )


def _options(escape: str, name: str) -> Options | None:
    table: Mapping[str, LineMagic | WatchMagic] = LINE_MAGICS if escape == "%" else WATCHES
    return table[name].options if name in table else None


def _candidates(options: Options, words: list[str], word: str) -> list[str]:
    """List what `word` may become, after `words`."""
    values = options.values(words[-1])
    if values is None:
        values = [flag for flag in options.flags() if flag not in words]
    return [value for value in values if value.startswith(word)]
