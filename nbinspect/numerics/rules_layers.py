"""Causes of operations that layers and losses are made of, by operation."""

from __future__ import annotations

from nbinspect.numerics.causes import Cause, Rule, Seen, as_number, text_of
from nbinspect.numerics.phrasing import at_index, number, some_of


def softmax_of_masked_row(seen: Seen) -> Cause | None:
    """A softmax over a row in which everything is -inf."""
    x = seen.arg("self")
    if x is None or not x.n_inf or not seen.event.shows_nan:
        return None
    return Cause(
        "The softmax of a row that holds nothing but -Inf is 0 / 0: in that row everything is "
        f"masked{at_index(seen.event.at)}.",
        "leave at least one entry of each row unmasked, or drop the empty rows; "
        "torch.finfo(x.dtype).min instead of -inf as the fill value gives a uniform row",
        certain=True,
    )


def too_few_for_spread(seen: Seen) -> Cause | None:
    """The deviation of a single value."""
    x, correction = seen.arg("self"), seen.arg("correction", "unbiased")
    if x is None or seen.result is None or not seen.event.shows_nan or x.n_nan or x.n_inf:
        return None
    each = x.n_values // max(seen.result.n_values, 1)
    used = as_number(correction.what) if correction is not None else 1.0
    if each > (1.0 if used is None else used):
        return None
    if each == 1:
        why = "The unbiased deviation divides by n - 1, and here n is 1."
    else:
        why = f"There are {each} values to take the deviation of."
    return Cause(
        why,
        f"{text_of(seen, seen.event.base)}.{seen.event.base}(..., correction=0), or a batch of at least two",
        certain=True,
    )


def mean_of_nothing(seen: Seen) -> Cause | None:
    """The mean of an empty tensor."""
    empty = [
        one
        for one in seen.event.operands
        if one.name == "self" and not one.n_values and not one.missing
    ]
    if not empty or seen.event.base not in {"mean", "median", "nanmean"}:
        return None
    return Cause(
        f"The mean of no values is 0 / 0: `{seen.user(seen.event.base)}` is empty ({empty[0].what}).",
        "skip it where x.numel() == 0, or divide the sum by max(n, 1)",
        certain=True,
    )


def all_labels_ignored(seen: Seen) -> Cause | None:
    """A loss in which every label is ignored."""
    target, ignore = seen.arg("target"), seen.arg("ignore_index")
    x = seen.arg("self")
    if target is None or ignore is None or not seen.event.shows_nan or (x and (x.n_nan or x.n_inf)):
        return None
    if target.n_values and not (target.low == target.high == as_number(ignore.what)):
        return None
    what = (
        "There are no labels"
        if not target.n_values
        else f"Every label is {ignore.what}, which is ignored"
    )
    return Cause(
        f"{what}, so the mean divides 0 by 0 labels.",
        "skip a batch without a label, or use reduction='sum' and divide by max(n_labels, 1)",
        certain=True,
    )


def no_weight(seen: Seen) -> Cause | None:
    """A weighted loss whose weights are 0."""
    weight = seen.arg("weight")
    if (
        weight is None
        or not weight.n_zero
        or seen.arg("target") is None
        or not seen.event.shows_nan
    ):
        return None
    return Cause(
        "The weights of the labels in this batch add up to 0, so the mean is 0 / 0.",
        "skip such a batch, or use reduction='sum' and divide by max(weight_sum, 1)",
        certain=True,
    )


def label_masked(seen: Seen) -> Cause | None:
    """The right label's logit is -inf."""
    x = seen.arg("self", "log_probs", "input")
    if x is None or not x.n_inf or seen.event.shows_nan:
        return None
    return Cause(
        "The right answer itself has probability 0: its log-probability is -Inf, masked out in the logits.",
        "leave the label's own entry unmasked",
        certain=True,
    )


def impossible_alignment(seen: Seen) -> Cause | None:
    """CTC with a target longer than the input."""
    x = seen.arg("log_probs")
    if x is None or x.n_nan:
        return None
    return Cause(
        "A target is longer than its input (repeated labels count twice), so no alignment exists and "
        "the CTC loss is infinite.",
        "torch.nn.functional.ctc_loss(..., zero_infinity=True), or drop such samples",
        certain=True,
    )


def normalised_without_spread(seen: Seen) -> Cause | None:
    """A normalisation whose epsilon is 0 in its type, over a constant row."""
    x, eps = seen.arg("input", "self"), seen.arg("eps")
    value = as_number(eps.what) if eps is not None else None
    if x is None or x.n_nan or x.n_inf or value is None or value > 1e-7:
        return None
    return Cause(
        f"A row without any spread is divided by its deviation, 0, and the epsilon of {number(value)} is "
        f"too small to help in {seen.type_name}.",
        "eps=1e-5",
        certain=True,
    )


def singular_matrix(seen: Seen) -> Cause | None:
    """The inverse or the log-determinant of a matrix that has none."""
    x = seen.arg("A", "self")
    if x is None or x.n_nan or x.n_inf:
        return None
    what = "has no inverse that the type can hold"
    if "det" in seen.event.base:
        what = "has a determinant of 0, whose logarithm is -Inf"
    return Cause(
        f"The matrix is singular or next to it: it {what}.",
        "add to its diagonal first: A + 1e-6 * torch.eye(n)",
        certain=True,
    )


def weight_without_norm(seen: Seen) -> Cause | None:
    """Weight norm of a row of zeros."""
    v = seen.arg("v")
    if v is None or not v.n_zero or v.n_nan or v.n_inf:
        return None
    return Cause(
        "Weight norm divides each row of `v` by its norm, and a row that holds nothing but 0 has "
        f"none: {some_of(v.n_zero, v, '0')}.",
        "torch.nn.init.normal_ for that weight, or no weight norm where a layer starts at 0",
        certain=True,
    )


_SPREAD = (mean_of_nothing, too_few_for_spread)
_SOFTMAX = (softmax_of_masked_row,)
_LABELS = (all_labels_ignored, no_weight, label_masked)
_NORMS = (normalised_without_spread,)
_SINGULAR = (singular_matrix,)

RULES: dict[str, tuple[Rule, ...]] = {
    "mean": (mean_of_nothing,),
    "nanmean": (mean_of_nothing,),
    "median": (mean_of_nothing,),
    "std": _SPREAD,
    "var": _SPREAD,
    "std_mean": _SPREAD,
    "var_mean": _SPREAD,
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX,
    "logsumexp": _SOFTMAX,
    "nll_loss_forward": _LABELS,
    "nll_loss2d_forward": _LABELS,
    "ctc_loss": (impossible_alignment,),
    "native_layer_norm": _NORMS,
    "native_group_norm": _NORMS,
    "native_batch_norm": _NORMS,
    "weight_norm_interface": (weight_without_norm,),
    "linalg_slogdet": _SINGULAR,
    "linalg_inv_ex": _SINGULAR,
    "linalg_solve_ex": _SINGULAR,
}
