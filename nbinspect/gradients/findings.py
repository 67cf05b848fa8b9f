"""Broken rules in the user's names: what is wrong, since when, and the line that mends it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from nbinspect.gradients.records import GradientFinding, Kind, Rules
from nbinspect.gradients.rules import Broken
from nbinspect.gradients.step_records import ParameterName
from nbinspect.records import as_code
from nbinspect.render.format import count

ORDER: tuple[Kind, ...] = (
    "NAN",
    "EXPLODING",
    "VANISHING",
    "DEAD",
    "UNUSED",
    "PILING_UP",
    "SPIKING",
    "SKIPPING",
)


def findings(
    broken: Mapping[Kind, Broken],
    about: Sequence[ParameterName],
    models: Sequence[str],
    rules: Rules,
) -> tuple[GradientFinding, ...]:
    """Describe the broken rules, the earliest first."""
    found = [_finding(kind, broken[kind], about, models, rules) for kind in ORDER if kind in broken]
    return tuple(sorted(found, key=lambda one: one.step))


def _finding(
    kind: Kind,
    what: Broken,
    about: Sequence[ParameterName],
    models: Sequence[str],
    rules: Rules,
) -> GradientFinding:
    chosen = _chosen(kind, what, about)
    name = about[chosen].name if chosen is not None else ""
    model = models[chosen] if chosen is not None else "model"
    others = tuple(about[one].name for one in what.parameters if one != chosen)
    return GradientFinding(
        kind=kind,
        parameter=name,
        step=what.step,
        value=what.value,
        why=_why(kind, what, name, len(others), rules),
        mend=_mend(kind, model, what),
        n_steps=what.n_steps,
        others=others,
    )


def _chosen(kind: Kind, what: Broken, about: Sequence[ParameterName]) -> int | None:
    """Give the parameter to name; of a dead layer its weight, not the weight that it feeds.

    Where a layer gives only zeros, its own weight and bias get none, nor does the next weight; but
    the next bias does.
    """
    if not what.parameters:
        return None
    if kind != "DEAD" or what.is_late:
        return what.parameters[0]
    layers: dict[str, list[int]] = {}
    for one in what.parameters:
        layers.setdefault(about[one].name.rpartition(".")[0], []).append(one)
    whole = [ones for ones in layers.values() if len(ones) > 1]
    return (whole[-1] if whole else what.parameters[-1:])[0]


def _why(kind: Kind, what: Broken, name: str, n_others: int, rules: Rules) -> str:
    match kind:
        case "NAN":
            return _why_bad(what, name, n_others)
        case "EXPLODING":
            return (
                f"the norm of all gradients is {what.value:.3g}, above {rules.high:g}, and either "
                "keeps growing or moves the weights by more than they are."
            )
        case "VANISHING":
            return (
                f"per element its gradient is {_power_of_ten(what.value)} times smaller than those of "
                "the last layers, and it falls from layer to layer: the depth is the cause, not "
                "convergence."
            )
        case "DEAD" if what.is_late:
            return (
                "backward leaves it a gradient, but this is 0 by the time the optimizer reads it, in "
                f"{what.n_steps} steps running{_others('; so are those of {}', n_others)}."
            )
        case "DEAD":
            return (
                f"its gradient is exactly 0 in {what.n_steps} steps running"
                f"{_others('; so are those of {}', n_others)}."
            )
        case "UNUSED":
            steps = f" in {what.n_steps} steps" if what.n_steps > 1 else ""
            why = f"no backward pass reached it{steps}"
            why += _others(", nor {}", n_others) + "."
            if " parameter " in name:
                why += " It belongs to no model: was a layer replaced after the optimizer was made?"
            return why
        case "PILING_UP":
            return (
                f"in {what.n_steps} steps running backward added to the gradients of the step before, "
                "which nothing had set to zero."
            )
        case "SPIKING":
            return (
                f"the norm of all gradients jumps to {float(f'{what.value:.3g}'):g} times that of the "
                "steps before, and most of it comes from this parameter."
            )
        case "SKIPPING":
            return (
                f"it skipped {what.n_steps} steps running, so the Inf or NaN does not come from the "
                "loss scale."
            )


def _why_bad(what: Broken, name: str, n_others: int) -> str:
    if what.is_late:
        return (
            "backward left it finite, and it is not when the optimizer reads it"
            f"{_others('; nor are those of {}', n_others)}: clipping, or your code between the two, "
            "divides by 0 or spreads an Inf."
        )
    if not name:
        return "the gradients of that step are still finite."
    too = _others("{} got one too", n_others) or "no other parameter got one"
    return f"backward came to it first; {too}."


def _power_of_ten(decades: float) -> str:
    """Write how many times that is, as long as it can be read at a glance."""
    rounded = round(10**decades, -int(decades))
    return count(int(rounded)) if decades < 7 else f"10^{decades:.0f}"


def _others(words: str, number: int) -> str:
    """Add how many other parameters there are, if any."""
    if not number:
        return ""
    return words.format(f"{number} other parameters" if number > 1 else "one other parameter")


def _mend(kind: Kind, model: str, what: Broken) -> str:
    # Without a name of the user's it is called by its class, or as torch's own calls have it.
    has_name = re.fullmatch(r"[a-z_][\w.]*", what.optimizer)
    optimizer = what.optimizer if has_name else "optimizer"
    clip = (
        f"torch.nn.utils.clip_grad_norm_({as_code(model)}.parameters(), 1.0)"
        "  # before optimizer.step()"
    )
    match kind:
        case "NAN" if what.is_late:
            norms = f"print([p.grad.norm() for p in {as_code(model)}.parameters()])"
            return f"{norms}  # before the code between backward and step, and after it"
        case "NAN" | "SKIPPING":
            return "%%nanwatch  # as the cell's first line: names the operation that made it"
        case "EXPLODING" | "SPIKING":
            return clip
        case "VANISHING":
            return (
                f"[torch.nn.init.kaiming_normal_(p) for p in {as_code(model)}.parameters() "
                "if p.dim() > 1]  # before training, for all layers; in place of Sigmoid take ReLU, "
                "or put BatchNorm before it"
            )
        case "DEAD" if what.is_late:
            return f"{optimizer}.zero_grad()  # before loss.backward(), not after it"
        case "DEAD":
            return "torch.nn.LeakyReLU()  # in place of the ReLU after it; or a lower learning rate"
        case "UNUSED":
            return "%autograd loss  # shows where the way to it is cut"
        case "PILING_UP":
            return f"{optimizer}.zero_grad()  # before loss.backward()"
