"""What the user's cell stops with."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, TracebackType

from nbinspect import notebook


class NonFiniteError(ArithmeticError):
    """A NaN or Inf is about to be trained on. The message is the finding in a sentence."""

    ends_the_cell = True

    def end_in_users_line(self) -> None:
        """Cut the traceback after the user's last line: what is below is torch's and ours."""
        last, entry = None, self.__traceback__
        while entry is not None:
            if _is_users(entry.tb_frame.f_code):
                last = entry
            entry = entry.tb_next
        if last is not None:
            last.tb_next = None

    def _render_traceback_(self) -> list[str]:
        """Give IPython the traceback that ends in the user's line."""
        self.end_in_users_line()
        if not any(map(_is_users, _codes(self.__traceback__))):  # found when the cell had ended
            return [f"{type(self).__name__}: {self}"]
        shown: list[str] = notebook.shell().InteractiveTB.structured_traceback(
            type(self), self, self.__traceback__, tb_offset=1
        )
        return shown


def _codes(entry: TracebackType | None) -> Iterator[CodeType]:
    while entry is not None:
        yield entry.tb_frame.f_code
        entry = entry.tb_next


def _is_users(code: CodeType) -> bool:
    return notebook.is_users_file(code.co_filename)
