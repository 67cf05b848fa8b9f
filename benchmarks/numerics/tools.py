"""What each tool says of a training, asked as its users ask it."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.numerics.planted import Training

HERE = str(Path(__file__).parent)


@dataclass(frozen=True)
class Answer:
    """What a tool said.

    Attributes:
        alarm: whether it said that something is wrong.
        ops: the operations it named: ATen's, autograd nodes or Python functions.
        line: the source line it named, "" for none.
        says: the answer in short, as it is shown.
        listed: operations it mentions without an alarm.
    """

    alarm: bool
    ops: tuple[str, ...] = ()
    line: str = ""
    says: str = "nothing"
    listed: tuple[str, ...] = ()


def nanwatch(training: Training, *, light: bool = False) -> Answer:
    """Ask nbinspect."""
    import nbinspect

    with nbinspect.nanwatch(light=light, stop=False) as watch:
        training.run()
    report = watch.report
    listed = tuple(one.op for one in report.absorbed)
    if report.healthy:
        return Answer(False, says=f"absorbed: {listed[0]}" if listed else "nothing", listed=listed)
    first = report.findings[0]
    names = (first.op, first.node) if first.node else (first.op,)
    return Answer(True, names, first.where.text if first.where else "", " in ".join(names))


def nanwatch_light(training: Training) -> Answer:
    """Ask nbinspect's light mode."""
    return nanwatch(training, light=True)


def detect_anomaly(training: Training) -> Answer:
    """Ask torch. The node is in the error, the forward line in a warning before it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.autograd.set_detect_anomaly(True):
            try:
                training.run()
            except RuntimeError as error:
                node = re.search(r"Function '(\w+)' returned nan", str(error))
                if node is None:
                    raise
                said = "\n".join(str(one.message) for one in caught)
                return Answer(True, (node[1],), _last_line(said), node[1])
    return Answer(False)


def _last_line(traceback: str) -> str:
    places = re.findall(rf'File "({re.escape(HERE)}[^"]*)", line (\d+)', traceback)
    return linecache.getline(places[-1][0], int(places[-1][1])) if places else ""


def debug_underflow_overflow(training: Training) -> Answer:
    """Ask transformers. It prints frames and names the module of the last one."""
    from transformers.debug_utils import DebugUnderflowOverflow

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        DebugUnderflowOverflow(training.model)
        try:
            training.run()
        except ValueError as error:
            if "inf/nan detected" not in str(error):
                raise
            modules = re.findall(r"^ +(\S+ \w+)$", printed.getvalue(), re.MULTILINE)
            return Answer(True, says=f"module {modules[-1]}" if modules else "a module")
    return Answer(False)


def torchlens(training: Training) -> Answer:
    """Ask TorchLens before every step: forward, then its backward."""
    for batch in training.batches:
        inputs = training.prepare(batch)
        answer = _torchlens_forward(training, inputs) or _torchlens_backward(training, inputs)
        if answer is not None:
            return answer
        training.optimizer.zero_grad()
        training.model(inputs).backward()
        training.optimizer.step()
    return Answer(False)


def _torchlens_forward(training: Training, inputs: torch.Tensor) -> Answer | None:
    from torchlens.debug import find_nan

    found = find_nan(training.model, inputs)
    if not found.found:
        return None
    name = str(found.func_name)
    return Answer(True, (name,), _source(found.source_line), name)


def _torchlens_backward(training: Training, inputs: torch.Tensor) -> Answer | None:
    import torchlens
    from torchlens.debug import bisect_nan_backward
    from torchlens.options import CaptureOptions

    options = CaptureOptions(backward_ready=True, save_grads=True)
    trace = torchlens.trace(training.model, inputs, capture=options)
    trace.log_backward(trace[trace.output_layers[0]].out)
    found = bisect_nan_backward(trace)
    if not found.found:
        return None
    if found.birth is None:
        return Answer(True, says="no birth")
    birth = found.birth
    return Answer(True, (birth.grad_fn_class,), _source(birth.source_line), birth.grad_fn_class)


def _source(place: str | None) -> str:
    file, _, line = (place or "").rpartition(":")
    return linecache.getline(file, int(line)) if file and line.isdigit() else ""


Tool = Callable[[Training], Answer]
TOOLS: dict[str, Tool] = {
    "%%nanwatch": nanwatch,
    "%%nanwatch --light": nanwatch_light,
    "detect_anomaly": detect_anomaly,
    "DebugUnderflowOverflow": debug_underflow_overflow,
    "TorchLens": torchlens,
}
NEEDS = {"DebugUnderflowOverflow": "transformers", "TorchLens": "torchlens"}
