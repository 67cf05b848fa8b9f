"""The options of a magic: read from its line, or refused in one line."""

from __future__ import annotations

import argparse
import inspect
import keyword
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from IPython.core.error import UsageError


@dataclass(frozen=True, slots=True)
class Call:
    """What the line of a magic asks for.

    Attributes:
        magic: the magic as the user writes it, e.g. ``%%memwatch``.
        options: the parsed options; each has `output`, the name given with ``-o``, or None, and
            `quiet` too.
        quiet: the line ends with ``;``: show nothing.
    """

    magic: str
    options: argparse.Namespace
    quiet: bool


class Options(argparse.ArgumentParser):
    """Parses the line of one magic and writes its help.

    Args:
        magic: the magic as the user writes it, e.g. ``%gpumem``.
        doc: its help: the question it answers, then examples.
    """

    def __init__(self, magic: str, doc: str) -> None:
        super().__init__(
            prog=magic,
            description=inspect.cleandoc(doc),
            formatter_class=_HelpFormatter,
            add_help=False,
            allow_abbrev=False,
        )
        self.color = False  # Python 3.14 would put terminal codes into the help
        self._values: dict[str, Callable[[], Sequence[str]]] = {}

    def complete(self, flag: str, values: Callable[[], Sequence[str]]) -> None:
        """Let Tab complete the value of the option `flag` from what `values` returns then."""
        self._values[flag] = values

    def flags(self) -> list[str]:
        """List every option."""
        return [flag for action in self._actions for flag in action.option_strings]

    def values(self, flag: str) -> Sequence[str] | None:
        """Give what may follow `flag`: () if anything may, None if it takes no value."""
        takes_value = any(flag in a.option_strings and a.nargs != 0 for a in self._actions)
        if not takes_value:
            return None
        return self._values[flag]() if flag in self._values else ()

    def parse(self, line: str) -> Call:
        """Read the line that follows the magic's name.

        Raises:
            UsageError: in one line, what is wrong with it.
        """
        words, quiet = self._words(line)
        options, unknown = self.parse_known_args(words)
        if unknown:
            what = "unknown option" if unknown[0].startswith("-") else "unexpected argument"
            self.error(f"{what} {unknown[0]}")
        options.quiet = quiet
        return Call(self.prog, options, quiet)

    def _words(self, line: str) -> tuple[list[str], bool]:
        """Split a line as a shell does, and say whether it ended with ``;``."""
        lexer = shlex.shlex(line, posix=True)  # drops comments; users do write them here
        lexer.whitespace_split, lexer.escape = True, ""  # a backslash is part of a Windows path
        try:
            words = list(lexer)
        except ValueError as error:
            self.error(str(error).lower())
        if not (words and words[-1].endswith(";")):
            return words, False
        words[-1] = words[-1].removesuffix(";")
        return [word for word in words if word], True

    def error(self, message: str) -> NoReturn:
        """Refuse the line.

        Raises:
            UsageError: always; IPython shows it as one line, and the cell ends with an error.
        """
        said = re.sub(r"^argument (\S+?)(?:/\S+)?: ", r"\1 ", " ".join(message.split()))
        raise UsageError(f"{self.prog}: {said} (see {self.prog}?)") from None


class ExpressionOptions(Options):
    """Options around an expression, which is taken as it stands: quotes, spaces, brackets and all.

    The parsed options have the expression as `expression`, "" if there is none.
    """

    def parse(self, line: str) -> Call:
        """Read the line that follows the magic's name: options stand first or last.

        Raises:
            UsageError: in one line, what is wrong with it.
        """
        rest = line.strip()
        quiet = rest.endswith(";")
        words: list[str] = []
        rest = self._take(rest.removesuffix(";").strip(), words, _FIRST)
        rest = self._take(rest, words, _LAST)
        if rest.startswith("-") and re.match(r"--?[a-z]", rest):
            self.error(f"unknown option {rest.split()[0]}")
        options = self.parse_args(words)
        options.expression = rest
        options.quiet = quiet
        return Call(self.prog, options, quiet)

    def _take(self, rest: str, words: list[str], pattern: re.Pattern[str]) -> str:
        """Move the options that stand at one end of `rest` over to `words`."""
        while found := pattern.search(rest):
            flag, value = found["flag"], found["value"]
            takes_value = self.values(flag) is not None
            if flag not in self.flags() or (pattern is _LAST and takes_value != bool(value)):
                break
            words += [flag, value] if takes_value and value else [flag]
            at = found.start("value") if value and not takes_value else found.end()
            rest = (rest[at:] if pattern is _FIRST else rest[: found.start()]).strip()
        return rest


_FIRST = re.compile(r"^(?P<flag>--?[a-z][\w-]*)(?:\s+(?P<value>(?!--?[a-z])\S+))?")
_LAST = re.compile(r"(?:^|\s)(?P<flag>--?[a-z][\w-]*)(?:\s+(?P<value>(?!-)[\w.:-]+))?$")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Writes help for a cell's output, where a terminal's width means nothing."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=20, width=80)


def positive_int(text: str) -> int:
    """Read a whole number from 1 up."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"takes a whole number from 1 up, not {text}")
    return int(text)


def positive_float(text: str) -> float:
    """Read a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):  # also refuses nan
        raise argparse.ArgumentTypeError(f"takes a number above 0, not {text}")
    return number


def whole(text: str) -> int:
    """Read a whole number from 0 up."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"takes a whole number from 0 up, not {text}")
    return int(text)


def repetitions(text: str) -> int:
    """Read how often to do something so that the times can be compared."""
    if not (text.isascii() and text.isdigit() and int(text) > 1):
        raise argparse.ArgumentTypeError(f"takes a whole number from 2 up, not {text}")
    return int(text)


def rate(text: str) -> float:
    """Read a number of times per second that a front end can follow."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.2 <= number <= 20:  # also refuses nan
        raise argparse.ArgumentTypeError(f"takes a number from 0.2 to 20, not {text}")
    return number


def identifier(text: str) -> str:
    """Read the name of a variable."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"takes the name of a variable, not {text}")
    return text


def add_output(options: Options) -> None:
    """Add ``-o NAME``, which every magic that makes a record has."""
    options.add_argument(
        "-o", dest="output", type=identifier, metavar="NAME", help="keep the record as NAME"
    )


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", re.IGNORECASE)


def size_or_switch(text: str) -> int | str:
    """Read ``on``, ``off`` or a size such as ``256MB`` or ``1.5GiB``; binary units either way."""
    if text in {"on", "off"}:
        return text
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"takes on, off or a size such as 256MB, not {text}")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))
