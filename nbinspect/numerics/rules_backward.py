"""Causes of operations that run backward, by the autograd node they belong to."""

from __future__ import annotations

from nbinspect.numerics.causes import Cause, Rule, Seen, nonzero, with_operand
from nbinspect.numerics.phrasing import at_index, function_name, some_of
from nbinspect.numerics.records import Operand
from nbinspect.render.format import count


def _zero_among(seen: Seen) -> Operand | None:
    """Give an operand that is 0 at the first bad place, or anywhere if that is not known."""
    for one in seen.tensors():
        if one.n_zero and one.name in {"other", "self", "tensor2"} and one.at in (0, None):
            return one
    return None


_INSIDE = "{x}.clamp(-1 + 1e-6, 1 - 1e-6)"


def slope(at: str, formula: str, mend: str, *, name: str) -> Rule:
    """Make the rule for a function whose slope is infinite at one place."""

    def rule(seen: Seen) -> Cause | None:
        zero = _zero_among(seen)
        if zero is None and not seen.event.shows_inf:
            return None
        if zero is None or seen.event.base not in {"div", "reciprocal", "pow", "rsqrt", "mul"}:
            return None
        n = seen.event.n_bad
        many = (
            f" {count(n)} of {count(seen.event.n_values)} inputs are there{at_index(seen.event.at)}."
            if n
            else ""
        )
        return Cause(
            f"The gradient of `{name}` at {at} is {formula}, and Inf * 0 is NaN as soon as the next "
            f"factor is 0.{many}",
            with_operand(seen, name, mend, mend),
            certain=True,
        )

    return rule


def steep(formula: str, mend: str, *, name: str) -> Rule:
    """Make the rule for a function whose slope is beyond the type next to 0."""

    def rule(seen: Seen) -> Cause | None:
        if not seen.event.shows_inf or seen.event.base not in {"pow", "mul", "div", "rsqrt"}:
            return None
        return Cause(
            f"The gradient of `{name}` is {formula}, which next to 0 is more than "
            f"{seen.type_name} can hold{at_index(seen.event.at)}.",
            with_operand(seen, name, mend, mend),
            certain=True,
        )

    return rule


def divided_by_zero(seen: Seen) -> Cause | None:
    """The backward of a division by 0."""
    zero = _zero_among(seen)
    if zero is None:
        return None
    return Cause(
        f"The gradient of a division is divided by the divisor again, and {some_of(zero.n_zero, zero, '0')}"
        f"{at_index(seen.event.at)}. `torch.where` after the division does not help: backward goes through it.",
        with_operand(seen, "div", nonzero(zero), f"divide by {nonzero(zero)}"),
        certain=True,
    )


def power_at_zero(seen: Seen) -> Cause | None:
    """X ** p with p < 1 at 0."""
    zero = _zero_among(seen)
    if zero is None:
        return None
    return Cause(
        f"The gradient of x ** p is p * x ** (p - 1), which is infinite at 0 for p below 1: "
        f"{some_of(zero.n_zero, zero, '0')}{at_index(seen.event.at)}.",
        with_operand(seen, "pow", "{x}.clamp(min=1e-12)", "{x}.clamp(min=1e-12)"),
        certain=True,
    )


def all_minus_inf(seen: Seen) -> Cause | None:
    """Logsumexp or softmax over a row of -inf."""
    if not any(one.n_inf for one in seen.tensors()) or not seen.event.shows_nan:
        return None
    return Cause(
        "In a row that holds nothing but -Inf the gradient is exp(-Inf - -Inf) = NaN: everything in "
        f"it is masked{at_index(seen.event.at)}.",
        "leave at least one entry of each row unmasked, or drop the empty rows",
        certain=True,
    )


def equal_values(name: str, what: str, mend: str) -> Rule:
    """Make the rule for a decomposition whose gradient divides by differences of its values."""

    def rule(seen: Seen) -> Cause | None:
        if any(one.n_nan or one.n_inf for one in seen.tensors()):
            return None
        return Cause(
            f"The gradient of {name} divides by the differences between {what}, and two of them "
            f"are equal or too near{at_index(seen.event.at)}.",
            mend,
            certain=True,
        )

    return rule


def divides_inside(seen: Seen) -> Cause | None:
    """The gradient of any other function, which divides by something that is 0 there."""
    zero = _zero_among(seen)
    if zero is None or seen.event.base not in {"div", "reciprocal", "rsqrt"}:
        return None
    name = function_name(seen.event.node or "")
    called = f"`{name}`" if name else "this line"
    return Cause(
        f"The gradient of {called} is a quotient, and what it divides by is 0 there"
        f"{at_index(seen.event.at)}: it has no slope at that place.",
        f"keep the inputs of {called} away from it, e.g. x + 1e-6, or leave those entries out before it",
        certain=True,
    )


_OF_SVD = equal_values(
    "singular vectors",
    "the singular values",
    "use the singular values alone (torch.linalg.svdvals), or add a little noise to the matrix",
)
_OF_EIGH = equal_values(
    "eigenvectors",
    "the eigenvalues",
    "use the eigenvalues alone (torch.linalg.eigvalsh), or add a little noise to the matrix",
)

INSIDE: tuple[Rule, ...] = (divides_inside,)
RULES: dict[str, tuple[Rule, ...]] = {
    "sqrt": (slope("0", "1 / (2 * 0) = Inf", "({x} + 1e-12)", name="sqrt"),),
    "rsqrt": (
        slope("0", "-0.5 * 0 ** -1.5 = -Inf", "({x} + 1e-6)", name="rsqrt"),
        steep("-0.5 * x ** -1.5", "({x} + 1e-6)", name="rsqrt"),
    ),
    "log": (slope("0", "1 / 0 = Inf", "{x}.clamp(min=1e-12)", name="log"),),
    "log2": (slope("0", "1 / 0 = Inf", "{x}.clamp(min=1e-12)", name="log2"),),
    "log10": (slope("0", "1 / 0 = Inf", "{x}.clamp(min=1e-12)", name="log10"),),
    "log1p": (
        slope("-1", "1 / 0 = Inf", "{x}.clamp(min=-1 + torch.finfo({x}.dtype).eps)", name="log1p"),
    ),
    "xlogy": (slope("0", "log(0) + 1 = -Inf", "{x}.clamp(min=1e-12)", name="xlogy"),),
    "acos": (slope("1 or -1", "infinite", _INSIDE, name="acos"),),
    "asin": (slope("1 or -1", "infinite", _INSIDE, name="asin"),),
    "atanh": (slope("1 or -1", "infinite", _INSIDE, name="atanh"),),
    "acosh": (slope("1", "infinite", "{x}.clamp(min=1 + 1e-6)", name="acosh"),),
    "logit": (slope("0 or 1", "infinite", "{x}.clamp(1e-6, 1 - 1e-6)", name="logit"),),
    "reciprocal": (
        slope("0", "-1 / 0 = -Inf", "{x}.clamp(min=1e-6)", name="reciprocal"),
        steep("-1 / x ** 2", "{x}.clamp(min=1e-6)", name="reciprocal"),
    ),
    "div": (divided_by_zero,),
    "pow": (power_at_zero,),
    "norm": (slope("0", "0 / 0", "({x} + 1e-12)", name="norm"),),
    "cdist": (slope("0", "0 / 0", "({x} + 1e-12)", name="cdist"),),
    "logsumexp": (all_minus_inf,),
    "logsoftmax": (all_minus_inf,),
    "softmax": (all_minus_inf,),
    "linalgsvd": (_OF_SVD,),
    "linalgeigh": (_OF_EIGH,),
    "linalgeig": (_OF_EIGH,),
}
