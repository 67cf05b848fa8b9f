"""What the user's cell stops with."""

from __future__ import annotations

from nbinspect import notebook


class NonFiniteError(ArithmeticError):
    """A NaN or Inf is about to be trained on. The message is the finding in a sentence."""

    def end_in_users_line(self) -> None:
        """Cut the traceback after the user's last line: what is below is torch's and ours."""
        last, entry = None, self.__traceback__
        while entry is not None:
            if notebook.is_users_file(entry.tb_frame.f_code.co_filename):
                last = entry
            entry = entry.tb_next
        if last is not None:
            last.tb_next = None

    def _render_traceback_(self) -> list[str]:
        """Give IPython the traceback that ends in the user's line."""
        self.end_in_users_line()
        shown: list[str] = notebook.shell().InteractiveTB.structured_traceback(
            type(self), self, self.__traceback__, tb_offset=1
        )
        return shown
