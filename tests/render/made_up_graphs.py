"""Made-up graphs that look like real reference chains."""

from __future__ import annotations

from nbinspect.blocks import Graph, GraphEdge, GraphNode

TENSOR = "Tensor 64x256 float32"
KIB = 1024


def node(key, label, type_name="", role="holder", hue="OTHER", size=None, *detail):
    return GraphNode(key, label, type_name, role, hue, size, detail)


def chain() -> Graph:
    """A loss in a list that keeps the graph of its step."""
    nodes = (
        node("r", "losses[0]", "Tensor scalar float32", "root", "VARIABLE", 4, "made in In[3]"),
        node("m", "MeanBackward0", "autograd node", "holder", "SAVED_FOR_BACKWARD"),
        node("u", "MulBackward0", "autograd node", "holder", "SAVED_FOR_BACKWARD"),
        node("t", "h", TENSOR, "target", "VARIABLE", 64 * KIB, "on cpu", "made in In[2] line 4"),
    )
    edges = (
        GraphEdge("r", "m", "grad_fn"),
        GraphEdge("m", "u", "next"),
        GraphEdge("u", "t", "saved self"),
    )
    return Graph("Who keeps `h`", nodes, edges)


def three_roots() -> Graph:
    """A variable, an optimizer's state and a frame, of which two share a holder."""
    state = "optimizer.state[model.layers.2.weight]['exp_avg']"
    nodes = (
        node("v", "cache", "dict", "root", "VARIABLE", 232),
        node("o", "optimizer", "Adam", "root", "OPTIMIZER_STATE", 48),
        node("f", "frame train() In[7] line 12", "frame", "root", "FRAME", 520),
        node("s", state, TENSOR, "holder", "OPTIMIZER_STATE", 64 * KIB),
        node("c", "hook save_output on model.fc", "function", "holder", "HOOK", 152),
        node("b", "buf", "cell", "holder", "OTHER", 40),
        node("l", "cache['k']", "list", "holder", "VARIABLE", 88),
        node("t", "h", TENSOR, "target", "VARIABLE", 64 * KIB),
    )
    edges = (
        GraphEdge("v", "l", "['k']"),
        GraphEdge("l", "t", "[3]"),
        GraphEdge("o", "s", ".state"),
        GraphEdge("s", "t", "view of"),
        GraphEdge("f", "c", "local 'hook'"),
        GraphEdge("f", "l", "local 'items'"),
        GraphEdge("c", "b", "__closure__[0]"),
        GraphEdge("b", "t", "closure variable 'buf'"),
    )
    return Graph("Who keeps `h`", nodes, edges)


def forty_holders() -> Graph:
    """Forty batches hold one tensor, each itself in a list."""
    nodes = [node("r", "batches", "list", "root", "VARIABLE", 376)]
    nodes += [
        node(f"d{n}", f"batches[{n}]", "dict", "holder", "DATALOADER", 184) for n in range(40)
    ]
    nodes.append(node("t", "mask", "Tensor 512x512 bool", "target", "BUFFER", 256 * KIB))
    edges = [GraphEdge("r", f"d{n}", f"[{n}]") for n in range(40)]
    edges += [GraphEdge(f"d{n}", "t", "['mask']") for n in range(40)]
    return Graph("Who keeps `mask`", tuple(nodes), tuple(edges))


def cycle() -> Graph:
    """A parameter, its gradient with a graph, and back, with a name beside it."""
    nodes = (
        node("m", "model", "Net", "root", "PARAMETER", 48),
        node("w", "model.fc.weight", "Parameter 256x256 float32", "target", "PARAMETER", 256 * KIB),
        node("g", "model.fc.weight.grad", TENSOR, "holder", "GRADIENT", 256 * KIB),
        node("n", "MmBackward0", "autograd node", "holder", "SAVED_FOR_BACKWARD"),
        node("x", "x", "Tensor 8x256 float32", "holder", "CYCLE", 8 * KIB),
    )
    edges = (
        GraphEdge("m", "w", ".fc.weight"),
        GraphEdge("w", "g", ".grad"),
        GraphEdge("g", "n", "grad_fn"),
        GraphEdge("n", "w", "saved mat2"),
        GraphEdge("n", "x", "saved self"),
        GraphEdge("x", "x", "__dict__['me']"),
    )
    return Graph("Who keeps `model.fc.weight`", nodes, edges)


def autograd(n_steps: int = 6) -> Graph:
    """A small network's graph, as `%autograd` shows it: no target, one root."""
    nodes = [node("r", "loss", "Tensor scalar float32", "root", "VARIABLE", 4)]
    edges = []
    above = "r"
    for n in range(n_steps):
        nodes += [
            node(f"a{n}", "AddmmBackward0", "autograd node", "holder", "SAVED_FOR_BACKWARD"),
            node(
                f"w{n}", f"model.layers.{n}.weight", "AccumulateGrad", "holder", "PARAMETER", 65536
            ),
            node(f"b{n}", f"model.layers.{n}.bias", "AccumulateGrad", "holder", "PARAMETER", 256),
        ]
        edges += [GraphEdge(above, f"a{n}", "next" if n else "grad_fn")]
        edges += [GraphEdge(f"a{n}", f"w{n}", "mat2"), GraphEdge(f"a{n}", f"b{n}", "bias")]
        above = f"a{n}"
    return Graph("Graph behind `loss`", tuple(nodes), tuple(edges))


def crowd(n_nodes: int = 2000) -> Graph:
    """Many holders on many levels, as a wide search finds them; roots far up."""
    nodes = [node("0", "h", TENSOR, "target", "VARIABLE", 64 * KIB)]
    edges = []
    for n in range(1, n_nodes):
        role = "root" if n % 97 == 0 or n == n_nodes - 1 else "holder"
        nodes.append(node(str(n), f"holder_{n}", ("list", "dict", "cell")[n % 3], role, "OTHER", n))
        edges.append(GraphEdge(str(n), str(n * 7919 % n // 2 if n % 5 else n // 3), f"[{n % 10}]"))
        if n % 4 == 0:
            edges.append(GraphEdge(str(n), str(n * n % n), ".x"))
        if n % 11 == 0:
            edges.append(GraphEdge(str(n // 2), str(n), "back"))
    return Graph("Who keeps `h`", tuple(nodes), tuple(edges))


def every(label: str) -> Graph:
    """One label wherever a label can come from the user's program."""
    nodes = (
        GraphNode("r", label, label, "root", label, 4, (label,)),
        GraphNode("t", label, label, "target", "PARAMETER", None, (label,), True),
        GraphNode("s", label, label, "stub"),
    )
    edges = (GraphEdge("r", "t", label), GraphEdge("s", "t", label), GraphEdge("t", "t", label))
    return Graph(label, nodes, edges)
