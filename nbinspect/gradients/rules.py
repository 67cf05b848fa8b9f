"""The health rules, held against each step as it comes; what is kept does not grow with the steps.

Thresholds are in `Rules`. A rule looks at layers beside each other, at a gradient beside its own
past, or at exact zeros, and never at a size alone: gradients of 1e-6 are well at the end of a
training, and gradients of 1e4 under a loss that is a sum.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbinspect.gradients import rows as packed
from nbinspect.gradients.records import Kind, ParameterName, Rules, StepFigures

Floats = np.ndarray[Any, np.dtype[np.float64]]
N_EARLY = 10  # steps that say what was usual at the start
N_SUSTAINED = 3  # steps running that make a state of it; all of a shorter run
WINDOW = 50
LEAST_WINDOW = 10
LEAST_LAYERS = 4
STEADY = 0.6  # rank correlation of gradient and depth
SPREADS = 8.0  # median absolute deviations of the logarithm
SMALL = 0.1  # of the usual norm at the start


@dataclass(slots=True)
class Streak:
    """A state that lasts."""

    first: int = -1
    length: int = 0
    n_steps: int = 0

    def note(self, step: int, holds: bool) -> None:
        """Take one more step."""
        self.first = (self.first if self.length else step) if holds else self.first
        self.length = self.length + 1 if holds else 0
        self.n_steps += holds


@dataclass(slots=True)
class Broken:
    """A rule that was broken for the first time, and by whom since."""

    step: int
    value: float
    parameters: list[int]
    n_steps: int = 1

    def again(self, parameters: Sequence[int]) -> None:
        """Count one more step."""
        self.n_steps += 1
        self.parameters += [one for one in parameters if one not in self.parameters]


@dataclass(slots=True)
class Usual:
    """What was usual among the steps of one group of parameters."""

    early: list[float] = field(default_factory=list)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))


class Health:
    """Holds the rules against one step after the other.

    Args:
        rules: their thresholds.

    Raises:
        ValueError: their range does not rise.
    """

    def __init__(self, rules: Rules) -> None:
        if not 0 < rules.low < rules.high < math.inf:
            raise ValueError(
                f"the range must rise from above 0, not {rules.low:g} to {rules.high:g}"
            )
        self.rules = rules
        self.broken: dict[Kind, Broken] = {}
        self.n_read = 0
        self.n_members: dict[int, int] = {}
        self.first_member: dict[int, int] = {}
        self.reached: set[int] = set()
        self.zeros: dict[int, Streak] = {}
        self._groups: dict[tuple[int, ...], Usual] = {}
        self._vanishing, self._growing, self._skipping = Streak(), Streak(), Streak()
        self._candidates: dict[str, tuple[int, float]] = {}

    def step(
        self,
        figures: StepFigures,
        members: tuple[int, ...],
        rows: packed.Rows,
        about: Sequence[ParameterName],
    ) -> None:
        """Take the step that has just been made."""
        self.n_read += 1
        reached = packed.has(rows, packed.REACHED)
        self._members(figures.index, members, reached)
        self._skipping.note(figures.index, figures.skipped)
        if self._skipping.length >= self.rules.skipped_steps:
            length = self._skipping.length
            self._note("SKIPPING", self._skipping.first, length, [], length)
        if figures.skipped:
            return
        norms = rows["norm"].astype(np.float64)
        if not np.isfinite(norms[reached]).all() or _is_bad(figures.loss):
            self._bad(figures, members, rows, reached & ~np.isfinite(norms))
            return
        if figures.loss != 0.0:
            self._dead(figures.index, members, reached, norms)
        weights = [len(about[one].shape) > 1 for one in members]
        layers = Layers.of(members, rows, reached & weights, about)
        self._falls(figures.index, layers)
        self._rises(figures.index, layers)
        biases = [about[one].name.endswith("bias") for one in members]
        self._rises(figures.index, Layers.of(members, rows, reached & biases, about))
        usual = self._groups.setdefault(members, Usual())
        self._size(figures, members, rows, reached, usual)
        self._spike(figures, members, norms, usual)

    def _note(
        self, kind: Kind, step: int, value: float, parameters: Sequence[int], n_steps: int = 1
    ) -> None:
        known = self.broken.get(kind)
        if known is None:
            self.broken[kind] = Broken(step, value, list(parameters), n_steps)
        else:
            known.again(parameters)

    def _members(self, index: int, members: tuple[int, ...], reached: Any) -> None:
        if not reached.any():
            return
        for one in members:
            self.n_members[one] = self.n_members.get(one, 0) + 1
            self.first_member.setdefault(one, index)
        self.reached.update(np.asarray(members)[reached].tolist())

    def _bad(
        self, figures: StepFigures, members: tuple[int, ...], rows: packed.Rows, bad: Any
    ) -> None:
        """NaN or Inf: the first parameter is the one that backward came to first."""
        order = [int(at) for at in np.argsort(rows["rank"], kind="stable") if bad[at]]
        some = [members[at] for at in order]
        self._note("NAN", figures.index, float(rows["norm"][order[0]]) if order else math.nan, some)
        if self._growing.length:
            self._explodes()

    def _dead(self, index: int, members: tuple[int, ...], reached: Any, norms: Floats) -> None:
        zero = reached & (norms == 0)
        for at in np.flatnonzero(reached & (zero | self._has_streak(members))):
            self.zeros.setdefault(members[at], Streak()).note(index, bool(zero[at]))

    def _has_streak(self, members: tuple[int, ...]) -> Any:
        if not self.zeros:
            return np.zeros(len(members), bool)
        return np.asarray([one in self.zeros for one in members])

    def _falls(self, index: int, layers: Layers) -> None:
        """Compare the first layers with the last ones, to which backward came first."""
        fall = layers.fall(self.rules.decades)
        vanishes = fall >= self.rules.decades and layers.deepest_norm < self.rules.low
        self._vanishing.note(index, vanishes)
        if vanishes:
            if self._vanishing.length == 1:
                self._candidates["vanishing"] = (layers.weakest, fall)
            if self._vanishing.length >= N_SUSTAINED:
                self._vanishes()

    def _rises(self, index: int, layers: Layers) -> None:
        """See an explosion on the way back; of biases too, whose gradient is what comes back."""
        grown = -layers.fall(self.rules.decades) >= self.rules.decades
        if grown and layers.deepest_norm > self.rules.high:
            self._grows(index, layers.strongest, layers.deepest_norm)

    def _vanishes(self) -> None:
        parameter, fall = self._candidates["vanishing"]
        length = self._vanishing.length
        self._note("VANISHING", self._vanishing.first, fall, [parameter], length)

    def _size(
        self,
        figures: StepFigures,
        members: tuple[int, ...],
        rows: packed.Rows,
        reached: Any,
        usual: Usual,
    ) -> None:
        norm = figures.grad_norm
        too_large = norm > self.rules.high
        grown = len(usual.early) >= 3 and norm > self.rules.growth * _median(usual.early)
        if too_large and (grown or _overwrites(rows)):
            largest = int(np.argmax(np.where(reached, rows["norm"], -1)))
            self._grows(figures.index, members[largest], norm)
        elif self._growing.length and self._growing.first + self._growing.length <= figures.index:
            self._growing.note(figures.index, False)

    def _grows(self, index: int, parameter: int, norm: float) -> None:
        if self._growing.length and self._growing.first + self._growing.length > index:
            return  # both ways to see it in one step
        self._growing.note(index, True)
        if self._growing.length == 1:
            self._candidates["exploding"] = (parameter, norm)
        if self._growing.length >= N_SUSTAINED:
            self._explodes()

    def _explodes(self) -> None:
        parameter, norm = self._candidates["exploding"]
        length = self._growing.length
        self._note("EXPLODING", self._growing.first, norm, [parameter], length)

    def _spike(
        self, figures: StepFigures, members: tuple[int, ...], norms: Floats, usual: Usual
    ) -> None:
        norm = figures.grad_norm
        if _is_spike(norm, usual, self.rules.spike):
            most = members[int(np.argmax(np.nan_to_num(norms)))]
            self._note("SPIKING", figures.index, norm / _median(usual.recent), [most])
        usual.recent.append(norm)
        if len(usual.early) < N_EARLY:
            usual.early.append(norm)

    def state(self, *, ended: bool) -> dict[Kind, Broken]:
        """Give the broken rules; some are decided by a long run, or else by the run's end."""
        few = ended and self.n_read < N_SUSTAINED
        if few and self._vanishing.length == self.n_read > 0:
            self._vanishes()
        if few and self._growing.length == self.n_read > 0:
            self._explodes()
        found = dict(self.broken)
        if dead := self._still_dead(ended):
            first = min(streak.first for streak in dead.values())
            n_steps = max(streak.length for streak in dead.values())
            found["DEAD"] = Broken(first, 0.0, sorted(dead), n_steps)
        if unused := self._never_reached(ended):
            first = min(self.first_member[one] for one in unused)
            n_steps = max(self.n_members[one] for one in unused)
            found["UNUSED"] = Broken(first, 0.0, unused, n_steps)
        return found

    def _still_dead(self, ended: bool) -> dict[int, Streak]:
        need = self.rules.dead_steps
        return {
            one: streak
            for one, streak in self.zeros.items()
            if streak.length >= need or (ended and _is_whole(streak, self.n_members.get(one, 0)))
        }

    def _never_reached(self, ended: bool) -> list[int]:
        need = self.rules.unused_steps
        if ended:
            need = min(need, max(self.n_members.values(), default=0))
        unused = (one for one in self.n_members if one not in self.reached)
        return sorted(one for one in unused if self.n_members[one] >= need > 0)


def _is_whole(streak: Streak, n_steps: int) -> bool:
    return n_steps >= N_SUSTAINED and streak.length == n_steps


def _is_bad(loss: object) -> bool:
    return isinstance(loss, float) and not math.isfinite(loss)


def _median(values: Sequence[float] | deque[float]) -> float:
    return float(np.median(list(values)))


def _overwrites(rows: packed.Rows) -> bool:
    """Say whether the step changed the weights by more than they are."""
    update = packed.known(rows, "update", packed.HAS_UPDATE)
    weight = packed.known(rows, "weight", packed.HAS_WEIGHT)
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.nansum(update**2) > np.nansum(weight**2) > 0)


def _is_spike(norm: float, usual: Usual, spike: float) -> bool:
    """Compare with the last steps, with how they vary, and with what the first ones were like."""
    if len(usual.recent) < LEAST_WINDOW or norm <= 0:
        return False
    recent = np.asarray(usual.recent)
    if not recent.all():
        return False
    logs = np.log(recent)
    middle = float(np.median(logs))
    spread = float(np.median(np.abs(logs - middle)))
    high = math.log(norm) - middle > max(math.log(spike), SPREADS * spread)
    return high and norm > SMALL * _median(usual.early)


@dataclass(frozen=True, slots=True)
class Layers:
    """Parameters of a kind, in the order in which backward came to them, the last layer first.

    Attributes:
        members: which they are.
        logs: the logarithm of their gradient per element that has one.
        norms: their gradient's norm.
    """

    members: tuple[int, ...]
    logs: Floats
    norms: Floats

    @classmethod
    def of(
        cls,
        members: tuple[int, ...],
        rows: packed.Rows,
        which: Any,
        about: Sequence[ParameterName],
    ) -> Layers:
        """Take parameters of one kind: weights, or biases; the two do not compare."""
        chosen = np.flatnonzero(which & (rows["norm"] > 0))
        chosen = chosen[np.argsort(rows["rank"][chosen], kind="stable")]
        norms = rows["norm"][chosen].astype(np.float64)
        sizes = np.asarray([about[members[at]].n_elements for at in chosen], np.float64)
        zeros = np.nan_to_num(packed.known(rows, "zeros", packed.HAS_ZEROS)[chosen])
        with np.errstate(divide="ignore"):
            logs = np.log10(norms) - 0.5 * np.log10(np.maximum(1.0, sizes * (1 - zeros)))
        return cls(tuple(members[at] for at in chosen), logs, norms)

    def fall(self, least: float) -> float:
        """Give by how many powers of ten the gradient falls from last to first.

        Args:
            least: what counts; less, or an unsteady fall, is 0.
        """
        n = len(self.logs)
        if n < LEAST_LAYERS or np.ptp(self.logs) < least:
            return 0.0
        part = self._part()
        fall = float(np.median(self.logs[:part]) - np.median(self.logs[n - part :]))
        order = np.empty(n)
        order[np.argsort(self.logs, kind="stable")] = np.arange(n)
        along = np.corrcoef(np.arange(n), order)[0, 1]
        return fall if -along * math.copysign(1, fall) > STEADY else 0.0

    def _part(self) -> int:
        return max(1, len(self.logs) // 4)

    @property
    def deepest_norm(self) -> float:
        """The middle norm among the first layers."""
        return float(np.median(self.norms[-self._part() :])) if len(self.norms) else 0.0

    @property
    def weakest(self) -> int:
        """The one of the first layers with the smallest gradient per element."""
        n = len(self.logs) - self._part()
        return self.members[n + int(np.argmin(self.logs[n:]))]

    @property
    def strongest(self) -> int:
        """The one of the first layers with the largest."""
        n = len(self.logs) - self._part()
        return self.members[n + int(np.argmax(self.logs[n:]))]
