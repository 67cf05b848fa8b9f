"""An autograd graph to walk in: a click unfolds a module or what repeats, another folds it."""

from __future__ import annotations

import time
from typing import Any

from nbinspect.autograd_graph.folding import Colour, Folding
from nbinspect.autograd_graph.records import GraphReport
from nbinspect.autograd_graph.view import colour_of
from nbinspect.blocks import Graph
from nbinspect.render.format import count, printable, seconds
from nbinspect.widgets.explorer import GraphExplorer

COLOURS: dict[Colour, str] = {
    "saved": "saved bytes",
    "gradient": "gradient norm",
    "none": "nothing",
}


class FoldingExplorer(GraphExplorer):
    """A picture of an autograd graph whose boxes unfold; holds plain values alone.

    Args:
        report: what to show.
    """

    hint = "Click a box with a plus to see what is in it, a frame's minus to fold it again."

    def __init__(self, report: GraphReport) -> None:
        self._report = report
        self._show_params = report.show_params
        self._colour: Colour = colour_of(report)
        self._folding = Folding(report)
        self._opened = self._folding.first()
        super().__init__(self._drawn(), None, report)

    def toggle(self, key: str) -> None:
        """Unfold a module or what repeats, or fold it.

        Args:
            key: of a box or a frame, or of a stub that stands for boxes that had no room.

        Cost: linear in the number of nodes, and a layout (0.1 to 1 s).
        """
        start = time.perf_counter()
        group = next((k for k in self._folding.groups if printable(k) == key), None)
        if group is None:
            self._is_wide = True
            self._draw(key, *self._widened())
        elif group in self._opened:
            self._opened.discard(group)
            self._draw(key, "Folded.", "")
        else:
            self._opened.add(group)
            self._is_wide = True
            n_boxes = len(self._folding.groups[group].items)
            self._draw(key, f"{count(n_boxes)} in it.", "")
        took = seconds(time.perf_counter() - start)
        if self.picture["said"]:
            self.picture = {**self.picture, "said": f"{self.picture['said'][:-1]} ({took})."}

    def choose(self, name: str, value: Any) -> None:
        """Colour by something else, or show and hide views and leaves.

        Args:
            name: ``colour`` or ``params``.
            value: a key of `COLOURS`; True or False.
        """
        if name == "colour" and value in COLOURS:
            self._colour = value
        elif name == "params":
            self._show_params = bool(value)
            self._folding = Folding(self._report, show_params=self._show_params)
            self._opened = self._folding.first()
        self._draw("", "", "")

    def _shown(self) -> Graph:
        return self._drawn()

    def _drawn(self) -> Graph:
        return self._folding.graph(self._opened, self._colour)

    def _unfolded(self) -> list[str]:
        return list(self._opened)

    def _controls(self) -> list[dict[str, Any]]:
        has_gradients = any(node.grad_norm is not None for node in self._report.nodes)
        offered = [key for key in COLOURS if key != "gradient" or has_gradients]
        return [
            {
                "name": "colour",
                "label": "Colour by",
                "value": self._colour,
                "options": [[key, COLOURS[key]] for key in offered],
            },
            {"name": "params", "label": "Views and leaves", "value": self._show_params},
        ]
