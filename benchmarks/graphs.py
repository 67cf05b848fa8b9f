"""How long does it take to draw an autograd graph, and how many boxes has the picture?"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

from benchmarks.fresh import in_process
from benchmarks.tables import Spread, Table, verdict

TOOLS = ("nbinspect", "torchviz", "torchview")
LIMIT_S = 2.0
LONGEST_S = 60.0
MODELS = ("ResNet-18", "GPT-2, 12 blocks", "GPT-2, 24 blocks", "LSTM, 50 steps")


def tables(*, quick: bool) -> list[Table]:
    """Draw each model with each tool, and one graph of 100,000 nodes."""
    columns = ("model", "tool", "boxes", "arrows", "graph, s", "picture, s", "height, px", "goal")
    table = Table("graphs: the picture of a loss", columns)
    for model in MODELS[: 1 if quick else None]:
        for tool in TOOLS:
            if tool != "nbinspect" and importlib.util.find_spec(tool) is None:
                table.add(model, tool, "not installed", "", "", "", "", "")
                continue
            table.add(model, tool, *_row(model, tool, 1 if quick else 5))
    table.notes.append(
        "graph: from the loss (torchview: from model and input, whose forward it runs itself) to "
        "something that can be drawn. picture: from there to SVG by Graphviz. Median [quartiles] of 5 "
        "in a process of its own; the second and later times, so no import is in it. The goal is for "
        "both together."
    )
    table.notes.append("nbinspect's first picture: what is folded unfolds by a click.")
    return [table, _large(quick=quick)]


def _row(model: str, tool: str, n_times: int) -> tuple[str, ...]:
    try:
        found = in_process(measure, model=model, tool=tool, n_times=n_times)
    except RuntimeError as error:
        return f"failed: {str(error).splitlines()[-1][:60]}", "", "", "", "", ""
    graph, picture = Spread.of(found["graph_s"]), Spread.of(found["picture_s"])
    goal = verdict(graph.median + picture.median, LIMIT_S, " s") if tool == "nbinspect" else ""
    height = f"{found['height']:,.0f}" if found["height"] else "no picture"
    boxes, arrows = f"{found['boxes']:,}", f"{found['arrows']:,}"
    return boxes, arrows, graph.show(digits=3), picture.show(digits=3), height, goal


def _large(*, quick: bool) -> Table:
    table = Table("graphs: 100,000 nodes in a row", ("tool", "what comes of it", "wall, s"))
    for tool in TOOLS[:2]:
        if tool != "nbinspect" and importlib.util.find_spec(tool) is None:
            table.add(tool, "not installed", "")
            continue
        began = time.perf_counter()
        try:
            said = str(in_process(draw_large, tool=tool, n_nodes=10_000 if quick else 100_000))
        except RuntimeError as error:
            said = f"failed: {str(error).strip().splitlines()[-1][:70]}"
        table.add(tool, said, f"{time.perf_counter() - began:.1f}")
    table.notes.append(
        "Wall time of the whole process, which frees the graph too. torchview draws no graph of a "
        "tensor, only of a module."
    )
    return table


def measure(*, model: str, tool: str, n_times: int) -> dict[str, Any]:
    """Draw a model's loss with a tool; times, boxes, arrows and the height of the picture."""
    import torch

    from benchmarks.drawn_models import DRAWN

    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, inputs = DRAWN[model]
    net, batch = make(), inputs()
    found: dict[str, Any] = {"graph_s": [], "picture_s": []}
    for n in range(n_times + 1):
        graph_s, picture_s, *rest = globals()[f"_{tool}"](net, batch)
        if n:
            found["graph_s"].append(graph_s)
            found["picture_s"].append(picture_s)
        found["boxes"], found["arrows"], found["height"] = rest
    return found


def _loss(model: Any, batch: Any) -> Any:
    return model(batch).square().mean()


def _nbinspect(model: Any, batch: Any) -> tuple[float, float, int, int, float]:
    import nbinspect
    from nbinspect.autograd_graph.folding import Folding
    from nbinspect.render.graph_svg import to_graph_svg
    from nbinspect.render.picture import placed

    loss = _loss(model, batch)
    began = time.perf_counter()
    report = nbinspect.autograd(loss)
    folding = Folding(report)
    graph = folding.graph(folding.first())
    middle = time.perf_counter()
    placed.cache_clear()
    drawn = to_graph_svg(graph)
    end = time.perf_counter()
    return middle - began, end - middle, len(graph.nodes), len(graph.edges), drawn.height


def _torchviz(model: Any, batch: Any) -> tuple[float, float, int, int, float]:
    import torchviz

    loss = _loss(model, batch)
    began = time.perf_counter()
    dot = torchviz.make_dot(loss, params=dict(model.named_parameters()), show_saved=True)
    return _by_dot(began, str(dot.source))


def _torchview(model: Any, batch: Any) -> tuple[float, float, int, int, float]:
    import torchview

    began = time.perf_counter()
    drawn = torchview.draw_graph(model, input_data=batch, expand_nested=True, mode="train")
    return _by_dot(began, str(drawn.visual_graph.source))


def _by_dot(began: float, dot: str) -> tuple[float, float, int, int, float]:
    import re

    from nbinspect.render.layout import layout

    middle = time.perf_counter()
    svg = layout(dot, LONGEST_S).svg
    end = time.perf_counter()
    height = re.search(r'<svg[^>]*height="(\d+)pt"', svg) if svg else None
    if keep := _pictures():
        (keep / f"{len(dot)}.svg").write_text(svg or "")
    arrows = len(re.findall(r" -> ", dot))
    boxes = len(re.findall(r"^\s*\"?\w+\"? \[", dot, re.MULTILINE))
    return middle - began, end - middle, boxes, arrows, float(height[1]) if height else 0.0


def _pictures() -> Path | None:
    """Give the folder to keep pictures in, if somebody wants to look at them."""
    import os

    folder = os.environ.get("BENCHMARKS_PICTURES")
    return Path(folder) if folder else None


def draw_large(*, tool: str, n_nodes: int) -> str:
    """Draw a long chain, let go of it, and say what came of it."""
    import torch

    y = torch.ones(1, requires_grad=True) * 1
    for _ in range(n_nodes):
        y = y * 1
    if tool == "torchviz":
        import torchviz

        dot = torchviz.make_dot(y)
        del y
        return f"{len(dot.body):,} lines of DOT"
    import nbinspect

    report = nbinspect.autograd(y)
    boxes = next(block for block in report.view() if hasattr(block, "nodes"))
    size = len(report.html())
    del y
    return f"{len(report.nodes):,} nodes looked at, {len(boxes.nodes)} boxes, {size // 1000} kB"
