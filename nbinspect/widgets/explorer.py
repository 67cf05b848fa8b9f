"""A graph to walk in: a click on a box asks the kernel what stands beside it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import anywidget
import torch
import traitlets

from nbinspect.autograd_graph.records import GraphReport
from nbinspect.blocks import Graph
from nbinspect.records import Record
from nbinspect.referrers.records import ReferenceReport
from nbinspect.referrers.view import graph as reference_graph
from nbinspect.render.format import count, printable, seconds
from nbinspect.render.graph_svg import to_graph_svg
from nbinspect.render.limit import MOST_NODES
from nbinspect.render.palette import hue
from nbinspect.render.picture import PAGE_WIDTH
from nbinspect.render.style import style_sheet
from nbinspect.tensors import class_name
from nbinspect.widgets import page
from nbinspect.widgets.explorer_graph import GrowingGraph, Neighbours
from nbinspect.widgets.explorer_holders import Holders

_HERE = Path(__file__).parent
# A saved notebook has no kernel to ask. The record is there, so the widget's place, where the front
# end would say "Loading widget...", is not shown.
_STILL_STYLE = (
    "<style>.jp-OutputArea-child:has(.nbg-still) + .jp-OutputArea-child"
    ":has(> .jp-OutputArea-output.lm-Panel):not(:has(.nbg-explorer)) { display: none; }</style>"
)


class GraphExplorer(anywidget.AnyWidget):
    """A graph that unfolds where one clicks.

    Args:
        first: the picture to begin with.
        neighbours: where more boxes come from; None for a picture that stays as it is.
        record: what is shown where no kernel answers: a saved notebook, a terminal.
        note: what the reader should know about the unfolding, "" for nothing.
    """

    _esm = (_HERE / "explorer.js").read_text("utf-8")
    _css = style_sheet() + (_HERE / "explorer.css").read_text("utf-8")
    picture: Any = traitlets.Dict().tag(sync=True)
    hint = "Click a box with a plus, or press Enter on it, to see who else holds it."

    def __init__(
        self, first: Graph, neighbours: Neighbours | None, record: Record, note: str = ""
    ) -> None:
        super().__init__()
        self._neighbours, self._record, self._note = neighbours, record, note
        self._growing = GrowingGraph(first)
        self._is_wide, self._serial = False, 0
        self._draw("", "", "")
        self.on_msg(_answer)

    def show(self) -> None:
        """Put the record and, below it, the graph under the running cell."""
        if not page.in_notebook():
            sys.stdout.write(f"{self._record.text()}\n")
            return
        data = self._record._repr_mimebundle_()
        still = f'<div class="nbg-still">{_STILL_STYLE}{data["text/html"]}</div>'
        page.publish({**data, "text/html": still}, f"{self.model_id}-still")
        page.publish(self._bundle(), f"{self.model_id}-graph")

    _ipython_display_ = show  # IPython's name for it

    def _bundle(self) -> dict[str, Any]:
        bundle: Any = self._repr_mimebundle_()
        data: dict[str, Any] = bundle[0] if isinstance(bundle, tuple) else bundle
        return data | {"text/plain": ""}

    def close(self) -> None:
        """Take the graph off the page; may be called twice."""
        super().close()
        self.layout.close()  # a widget of its own, with a comm of its own

    def toggle(self, key: str) -> None:
        """Unfold a box, or fold it if it is unfolded.

        Args:
            key: of a `GraphNode` as it is spelled in the picture, or of a stub that stands for
                boxes that had no room.

        Cost: what the neighbours cost (passes over the heap), and a layout (0.1 s).
        """
        growing = self._growing
        node = next((n for n in growing.graph().nodes if printable(n.key) == key), None)
        if node is None:
            self._is_wide = True
            self._draw(key, *self._widened())
        elif node.key in growing.found and node.can_unfold:
            growing.fold(node.key)
            self._is_wide = bool(growing.found)
            self._draw(key, "Folded.", "")
        elif node.can_unfold and self._neighbours is not None:
            self._draw(key, *self._unfold(node.key, self._neighbours))
        else:
            self._draw(key, "", "")  # an answer all the same: the page waits for one

    def _unfold(self, key: str, neighbours: Neighbours) -> tuple[str, str]:
        """Ask about a box; give what to say, and what went wrong."""
        start = time.perf_counter()
        try:
            found = neighbours.of(key)
        except LookupError as error:
            if why := neighbours.ended():
                self._growing.end(why)
                return "", f"{why}. The picture shows how it was."
            self._growing.gone[key] = str(error)
            return "", f"Gone: {error}."
        except Exception as error:  # the picture stays usable, and says why there is no more of it
            return "", f"No answer: {class_name(type(error))}: {error}"
        self._is_wide = True
        n_new = self._growing.unfold(key, found)
        n_known = len(found.nodes) - n_new
        parts = [f"{count(n_new)} new"] if n_new else []
        parts += [f"{count(n_known)} already in the picture"] if n_known else []
        what = ", ".join(parts) or "Nothing found"
        return f"{what} ({seconds(time.perf_counter() - start)}).", ""

    def _widened(self) -> tuple[str, str]:
        if len(self._shown().nodes) > MOST_NODES:
            return "", f"One picture shows {MOST_NODES} boxes at most; fold some to see others."
        return "All are shown.", ""

    def _draw(self, key: str, said: str, error: str) -> None:
        """Lay the graph out and send it, with what became of the box `key`."""
        shown = self._shown()
        drawn = to_graph_svg(shown, float("inf") if self._is_wide else PAGE_WIDTH)
        self._serial += 1
        self.picture = {
            "title": printable(shown.title),
            "svg": drawn.svg,
            "width": drawn.width,
            "height": drawn.height,
            "caption": " ".join(part for part in (self._note, drawn.caption) if part),
            "unfolded": [printable(each) for each in self._unfolded()],
            "gone": [printable(node.key) for node in shown.nodes if node.key in self._growing.gone],
            "key": key,
            "said": printable(said),
            "error": printable(error),
            "hint": self.hint,
            "controls": self._controls(),
            "scale": _scale(shown),
            "serial": self._serial,
        }

    def _shown(self) -> Graph:
        """Give the graph as it is now."""
        return self._growing.graph()

    def _unfolded(self) -> list[str]:
        """Give the keys of what is unfolded."""
        return list(self._growing.found)

    def _controls(self) -> list[dict[str, Any]]:
        """Give what the reader may choose: a list if it has options, else on or off."""
        return []

    def choose(self, name: str, value: Any) -> None:
        """Take what the reader has chosen."""


def _scale(graph: Graph) -> dict[str, str] | None:
    """Give what the colour of boxes stands for as the page wants it."""
    scale = graph.scale
    if scale is None:
        return None
    words = {"title": scale.title, "low": scale.low, "high": scale.high}
    return {name: printable(text) for name, text in words.items()} | {"fill": hue(scale.hue).fill}


def _answer(widget: GraphExplorer, content: dict[str, Any], _buffers: Any) -> None:
    kind = content.get("kind")
    if kind == "toggle":
        widget.send({"kind": "working"})
        widget.toggle(str(content.get("key")))
    elif kind == "choose":
        widget.send({"kind": "working"})
        widget.choose(str(content.get("name")), content.get("value"))


def explore(report: ReferenceReport | GraphReport, target: object = None) -> GraphExplorer:
    """Make a picture to walk in; see `nbinspect.widgets.explore`."""
    if isinstance(report, GraphReport):
        from nbinspect.widgets.explorer_folding import FoldingExplorer

        return FoldingExplorer(report)
    first = reference_graph(report)
    if issubclass(type(target), torch.UntypedStorage):
        note = "Unfolding begins at one tensor; several may look into a storage."
        return GraphExplorer(first, None, report, note)
    try:
        holders = Holders(report, target)
    except ValueError as error:
        return GraphExplorer(first, None, report, str(error) if report.chains else "")
    return GraphExplorer(holders.first, holders, report, holders.note)
