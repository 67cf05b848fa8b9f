"""Causes of arithmetic that runs forward (and of optimizers' writes), by operation."""

from __future__ import annotations

import math

from nbinspect.numerics.causes import (
    Cause,
    Rule,
    Seen,
    as_number,
    nonzero,
    text_of,
    with_operand,
    zeros,
)
from nbinspect.numerics.phrasing import at_index, name_of, number, some_of
from nbinspect.numerics.records import Operand
from nbinspect.render.format import count

_TINY = {"float16": "6e-8", "bfloat16": "9e-41"}


def divided_by_zero(seen: Seen) -> Cause | None:
    """0 / 0 or x / 0."""
    divisor = seen.arg("other")
    found = zeros(divisor, seen)
    if not found or divisor is None:
        return None
    above = seen.arg("self")
    zero_above = above is not None and (
        above.at == 0
        or (above.at is None and above.n_zero)
        or (above.missing is not None and not seen.event.shows_inf)
    )
    what = "0 / 0 is NaN." if seen.event.shows_nan and zero_above else "Dividing by 0 gives Inf."
    below = seen.user("div")
    counts = divisor.n_values == 1 and ("sum" in below or "len" in below or "count" in below)
    if counts:
        return Cause(
            f"{what} The divisor, `{below}`, is 0: there was nothing to count or average.",
            with_operand(seen, "div", "{x}.clamp(min=1)", "divide by {x}.clamp(min=1)"),
            certain=True,
        )
    better = nonzero(divisor)
    mend = with_operand(seen, "div", better, f"divide by {better}")
    return Cause(f"{what} {found}", mend, certain=True)


def divided_by_scalar_zero(seen: Seen) -> Cause | None:
    """X / 0 with a Python number."""
    divisor = seen.arg("other")
    if divisor is None or divisor.n_values or divisor.what not in {"0", "0.0", "-0"}:
        return None
    return Cause("The divisor is the number 0.", "divide by max(n, 1)", certain=True)


def root_of_negative(seen: Seen) -> Cause | None:
    """The square root of a negative number."""
    under = seen.arg("self")
    if under is None or under.low is None or under.low >= 0 or not seen.event.shows_nan:
        return None
    return Cause(
        f"The root of a negative number is NaN. The smallest value under it is "
        f"{number(under.low)}{at_index(seen.event.at)}; rounding makes such values out of what is 0 "
        "on paper.",
        with_operand(
            seen,
            seen.event.base,
            "{x}.clamp(min=0)" if seen.event.base == "sqrt" else "{x}.clamp(min=1e-12)",
            "{x}.clamp(min=0)",
        ),
        certain=True,
    )


def one_over_zero(seen: Seen) -> Cause | None:
    """rsqrt(0), reciprocal(0)."""
    under = seen.arg("self")
    found = zeros(under, seen)
    if not found:
        return None
    base = seen.event.base
    what = "1 / sqrt(0)" if base == "rsqrt" else "1 / 0"
    tiny = ""
    mend = with_operand(seen, base, "({x} + 1e-6)", "{x} + 1e-6 in its place")
    if seen.is_narrow:
        tiny = (
            f" In {seen.type_name} anything below {_TINY[seen.type_name]} is 0, so an epsilon of"
            " 1e-8 or 1e-12 adds nothing."
        )
        mend = with_operand(
            seen, base, "{x}.float().clamp(min=1e-6)", "compute it in float32: {x}.float()"
        )
    return Cause(f"{what} is Inf. {found}{tiny}", mend, certain=True)


def log_of_zero(seen: Seen) -> Cause | None:
    """Log of 0 or of less."""
    x = seen.arg("self")
    base = seen.event.base
    edge = -1.0 if base == "log1p" else 0.0
    if x is None or x.low is None or x.low > edge:
        return None
    if seen.event.shows_nan and x.low < edge:
        what = f"`{base}` has no value below {number(edge)}: the smallest is {number(x.low)}"
    else:
        what = f"`{base}` of {number(edge)} is -Inf"
        if edge == 0:
            what += f": {some_of(x.n_zero, x, '0')}"
    epsilon = "torch.finfo(x.dtype).eps" if seen.is_narrow else "1e-12"
    least = epsilon if edge == 0 else "-1 + 1e-6"
    clamped = f"{{x}}.clamp(min={least})"
    mend = with_operand(seen, base, clamped, f"{clamped}.{base}()")
    if "softmax" in seen.line:
        mend = "torch.log_softmax(x, dim), which never takes the log of 0"
    elif "sigmoid" in seen.line:
        minus = "-" if "1-" in seen.user(base, "").replace(" ", "") else ""
        mend = f"torch.nn.functional.logsigmoid({minus}x)"
    return Cause(f"{what}{at_index(seen.event.at)}.", mend, certain=True)


def exp_overflow(seen: Seen) -> Cause | None:
    """Exp of too large a number."""
    x = seen.arg("self")
    if x is None or x.high is None or seen.event.shows_nan:
        return None
    top = math.log(seen.limit)
    size = max(abs(x.high), abs(x.low or 0)) if seen.event.base in {"cosh", "sinh"} else x.high
    if size < top * 0.95 and seen.event.base != "exp2":
        return None
    name = seen.event.base
    text = text_of(seen, name)
    mend = (
        f"{text}.clamp(max={number(math.floor(top))}).{name}(), or work with logarithms (logsumexp)"
    )
    if "where" in seen.line:
        mend = f"give it a safe input, also where the result is not chosen: {text}.clamp(max=0).{name}()"
    return Cause(
        f"`{name}` of {number(size)} is more than {seen.type_name} can hold: beyond "
        f"{number(round(top, 1))} it is Inf. Where a later step drops that value, backward still "
        "multiplies it by 0, and 0 * Inf is NaN.",
        mend,
        certain=True,
    )


def pow_at_zero(seen: Seen) -> Cause | None:
    """0 to a negative power, a negative number to a broken one."""
    base, exponent = seen.arg("self"), seen.arg("exponent")
    if base is None or exponent is None:
        return None
    power = exponent.at if exponent.n_values else as_number(exponent.what)
    if base.n_zero and (power is None or power < 0) and seen.event.shows_inf:
        return Cause(
            f"0 to a negative power is Inf. {some_of(base.n_zero, base, '0')}.",
            with_operand(seen, "pow", "{x}.clamp(min=1e-6)", "{x}.clamp(min=1e-6)"),
            certain=True,
        )
    if base.low is not None and base.low < 0 and seen.event.shows_nan:
        return Cause(
            f"A negative number ({number(base.low)}) to the power of {exponent.what if power is None else number(power)}"
            " is NaN.",
            with_operand(seen, "pow", "{x}.clamp(min=0)", "{x}.clamp(min=0)"),
            certain=True,
        )
    return None


def outside_of(low: float, high: float, mend: str) -> Rule:
    """Make the rule for a function that has values between `low` and `high` only."""

    def rule(seen: Seen) -> Cause | None:
        x = seen.arg("self")
        if x is None or x.low is None or x.high is None or (x.low > low and x.high < high):
            return None
        worst = x.high if x.high >= high else x.low
        name = seen.event.base
        bounds = (
            f"from {number(low)} to {number(high)}"
            if math.isfinite(high)
            else f"from {number(low)} on"
        )
        at_edge = worst in {low, high}
        what = (
            f"`{name}` is infinite at {number(worst)}"
            if at_edge and not seen.event.shows_nan
            else f"`{name}` has values {bounds} only, and was given {worst:.9g}"
        )
        return Cause(
            f"{what}{at_index(seen.event.at)}. Rounding is enough to get there.",
            with_operand(seen, name, mend, mend),
            certain=True,
        )

    return rule


_CLAMP = "{x}.clamp(-1 + 1e-6, 1 - 1e-6)"


def _infinite(operand: Operand) -> str:
    if not operand.n_values:
        return f"the factor is {operand.what}"
    return some_of(operand.n_inf, operand, "infinite")


def zero_times_inf(seen: Seen) -> Cause | None:
    """0 * inf."""
    factors = [seen.arg("self"), seen.arg("other", "mat2", "mat1")]
    infinite = [one for one in factors if one is not None and (one.n_inf or "inf" in one.what)]
    others = [one for one in factors if one is not None and one.n_zero]
    if not infinite or not others or not seen.event.shows_nan:
        return None
    mend = "mask with torch.where or masked_fill instead of multiplying"
    if "log" in seen.line and ("exp" in seen.line or "prob" in seen.line or "softmax" in seen.line):
        mend = "torch.special.entr(prob), which is 0 where the probability is 0; or torch.xlogy"
    return Cause(
        f"0 * Inf is NaN: {_infinite(infinite[0])}, and {name_of(others[0])} is 0 there"
        f"{at_index(seen.event.at)}.",
        mend,
        certain=True,
    )


def inf_minus_inf(seen: Seen) -> Cause | None:
    """Inf - inf, or a mean over both."""
    infinite = [one for one in seen.tensors() if one.n_inf]
    if not infinite or not seen.event.shows_nan:
        return None
    return Cause(
        f"Inf - Inf is NaN: {some_of(infinite[0].n_inf, infinite[0], 'infinite')}"
        f"{at_index(seen.event.at)}.",
        "take the masked entries out before adding up: x[mask], or torch.where(mask, x, 0)",
        certain=True,
    )


def optimizer_epsilon(seen: Seen) -> Cause | None:
    """Adam's epsilon is 0 in half precision."""
    below = seen.arg("tensor2", "tensors2", "other", "denom")
    by_torch = seen.event.phase == "optimizer" and "step" in seen.line
    if not by_torch or below is None or not below.n_zero:
        return None
    narrow = f" In {seen.type_name} an eps of 1e-8 is 0." if seen.is_narrow else ""
    return Cause(
        f"The update divides by sqrt(v) + eps, which is 0 for {count(below.n_zero)} of {count(below.n_values)} values, "
        f"those whose gradient has always been 0: 0 / 0 is NaN.{narrow}",
        "eps=1e-4 for the optimizer, or float32 weights with torch.autocast"
        if narrow
        else "eps=1e-8",
        certain=True,
    )


def _biggest(seen: Seen) -> tuple[Operand | None, float]:
    found = [(max(abs(one.low or 0), abs(one.high or 0)), one) for one in seen.tensors()]
    size, one = max(found, key=lambda pair: pair[0], default=(0.0, None))
    return one, size


def cast_overflow(seen: Seen) -> Cause | None:
    """A number that the narrower type cannot hold."""
    one, size = _biggest(seen)
    if one is None or size <= seen.limit or not math.isfinite(seen.limit):
        return None
    return Cause(
        f"{number(size)} does not fit into {seen.type_name}, which ends at {number(seen.limit)}.",
        "keep it in float32 or use bfloat16, or scale it down first",
    )


def _may_overflow(seen: Seen, size: float) -> bool:
    """Say whether a product of a few such values, or a sum of all, can be too large."""
    n_values = max(one.n_values for one in seen.tensors())
    numbers = (as_number(one.what) for one in seen.event.operands if not one.n_values)
    size = max(size, *(abs(one) for one in numbers if one is not None and math.isfinite(one)), 0)
    return size >= seen.limit**0.25 or size * size * n_values >= seen.limit


# Of finite operands these make an Inf only by going beyond the type.
_ARITHMETIC = frozenset(
    {
        "mul", "add", "sub", "rsub", "sum", "cumsum", "prod", "cumprod", "square", "mm", "bmm", "mv",
        "dot", "addmm", "addmv", "addbmm", "baddbmm", "linear", "convolution", "addcmul", "lerp",
        "mse_loss", "linalg_vector_norm", "cross", "outer",
    }
)  # fmt: skip


def _factor(seen: Seen) -> Operand | None:
    numbers = (one for one in seen.event.operands if as_number(one.what) is not None)
    return next(numbers, None)


def overflow(seen: Seen) -> Cause | None:
    """Finite operands, and a result beyond the type."""
    if seen.event.kind != "born" or not seen.event.shows_inf:
        return None
    one, size = _biggest(seen)
    if not math.isfinite(seen.limit):
        return None
    if seen.event.base not in _ARITHMETIC and (one is None or not _may_overflow(seen, size)):
        return None
    name = seen.event.op.rpartition(".")[2].strip("_")
    sizes = ", ".join(
        f"{name_of(each)} up to {number(max(abs(each.low or 0), abs(each.high or 0)))}"
        for each in seen.tensors()[:2]
    )
    if not sizes:  # overwritten by the operation itself
        sizes = f"{name_of(one)} is {one.what}" if (one := _factor(seen)) else "now overwritten"
    if seen.event.phase == "optimizer":
        return Cause(
            f"The update is larger than {seen.type_name} can hold ({sizes}).",
            "lower the learning rate, or clip: torch.nn.utils.clip_grad_norm_(params, 1.0)",
        )
    mend = "scale the inputs or the weights down, normalise before it, or lower the learning rate"
    if seen.is_narrow:
        mend = "use bfloat16 or compute this in float32, or scale its inputs down"
    elif seen.event.node is not None:
        mend = "clip or scale what flows back: lower the loss scale, or the learning rate"
    return Cause(
        f"The result of `{name}` overflows {seen.type_name}, which ends at {number(seen.limit)}: "
        f"its operands are finite ({sizes}).",
        mend,
    )


def xlogy_of_zero(seen: Seen) -> Cause | None:
    """X * log(0), where x is not 0."""
    y = seen.arg("other")
    if y is None or y.low is None or y.low > 0:
        return None
    if seen.event.shows_nan and y.low < 0:
        what = (
            f"`xlogy` has no value where {name_of(y)} is below 0: the smallest is {number(y.low)}"
        )
    else:
        what = f"`xlogy` of x and 0 is infinite unless x is 0 too: {some_of(y.n_zero, y, '0')}"
    return Cause(
        f"{what}{at_index(seen.event.at)}.",
        "clamp what the logarithm is taken of to more than 0: y.clamp(min=1e-12)",
        certain=True,
    )


def remainder_of_zero(seen: Seen) -> Cause | None:
    """X modulo 0."""
    found = zeros(seen.arg("other"), seen)
    if not found or not seen.event.shows_nan:
        return None
    return Cause(
        f"What remains of a division by 0 is NaN. {found}",
        "a divisor that is never 0: x.clamp(min=1e-6)",
        certain=True,
    )


def divided_by_tiny(seen: Seen) -> Cause | None:
    """A quotient beyond the type, since the divisor is next to nothing."""
    above, below = seen.arg("self"), seen.arg("other")
    if below is None or below.low is None or below.n_zero or not seen.event.shows_inf:
        return None
    least = min(abs(below.low), abs(below.high or 0)) if below.at is None else abs(below.at)
    size = max(abs(above.low or 0), abs(above.high or 0)) if above is not None else 1.0
    if not least or size / least < seen.limit:
        return None
    return Cause(
        f"Dividing by {number(least)} gives more than {seen.type_name} can hold"
        f"{at_index(seen.event.at)}.",
        with_operand(seen, "div", "{x}.clamp(min=1e-6)", "divide by {x}.clamp(min=1e-6)"),
        certain=True,
    )


def at_pole(seen: Seen) -> Cause | None:
    """lgamma(0), digamma(-1)."""
    x = seen.arg("self")
    if x is None or x.low is None or x.low > 0:
        return None
    if x.at is not None and (x.at > 0 or x.at != int(x.at)):
        return None
    name = seen.event.base
    return Cause(
        f"`{name}` has no value at 0, -1, -2 and so on, and was given "
        f"{number(x.low if x.at is None else x.at)}{at_index(seen.event.at)}.",
        with_operand(seen, name, "{x}.clamp(min=1e-6)", "{x}.clamp(min=1e-6)"),
        certain=True,
    )


_LOG = (log_of_zero,)
_EXP = (exp_overflow,)

RULES: dict[str, tuple[Rule, ...]] = {
    "div": (optimizer_epsilon, divided_by_zero, divided_by_scalar_zero, divided_by_tiny),
    "true_divide": (divided_by_zero, divided_by_scalar_zero, divided_by_tiny),
    "xlogy": (xlogy_of_zero,),
    "remainder": (remainder_of_zero, divided_by_scalar_zero),
    "fmod": (remainder_of_zero, divided_by_scalar_zero),
    "lgamma": (at_pole,),
    "digamma": (at_pole,),
    "polygamma": (at_pole,),
    "addcdiv": (optimizer_epsilon,),
    "sqrt": (root_of_negative,),
    "rsqrt": (root_of_negative, one_over_zero),
    "reciprocal": (one_over_zero,),
    "log": _LOG,
    "log2": _LOG,
    "log10": _LOG,
    "log1p": _LOG,
    "exp": _EXP,
    "expm1": _EXP,
    "exp2": _EXP,
    "cosh": _EXP,
    "sinh": _EXP,
    "pow": (pow_at_zero,),
    "acos": (outside_of(-1, 1, _CLAMP),),
    "asin": (outside_of(-1, 1, _CLAMP),),
    "atanh": (outside_of(-1, 1, _CLAMP),),
    "erfinv": (outside_of(-1, 1, _CLAMP),),
    "acosh": (outside_of(1, math.inf, "{x}.clamp(min=1 + 1e-6)"),),
    "logit": (outside_of(0, 1, "{x}.clamp(1e-6, 1 - 1e-6)"),),
    "mul": (zero_times_inf,),
    "mm": (zero_times_inf,),
    "bmm": (zero_times_inf,),
    "addmm": (zero_times_inf,),
    "baddbmm": (zero_times_inf,),
    "add": (inf_minus_inf,),
    "sub": (inf_minus_inf,),
    "sum": (inf_minus_inf,),
    "mean": (inf_minus_inf,),
    "to_copy": (cast_overflow,),
    "copy": (cast_overflow,),
}
ANY: tuple[Rule, ...] = (cast_overflow, overflow)
