"""The health rules, held against each step as it comes; what is kept does not grow with the steps.

Thresholds are in `Rules`. A rule looks at layers beside each other, at a gradient beside its own
past, or at exact zeros, and never at a size alone: gradients of 1e-6 are well at the end of a
training, and gradients of 1e4 under a loss that is a sum.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbinspect.gradients import rows as packed
from nbinspect.gradients.records import Kind, Rules
from nbinspect.gradients.step_records import ParameterName, StepFigures

Floats = np.ndarray[Any, np.dtype[np.float64]]
N_EARLY = 10  # steps that say what was usual at the start
N_SUSTAINED = 3  # steps running that make a state of it; all of a shorter run
WINDOW = 50
LEAST_WINDOW = 10
LEAST_LAYERS = 4
STEADY = 0.6  # rank correlation of gradient and depth
SPREADS = 8.0  # median absolute deviations of the logarithm
STILL = 2.0  # times its gradient in the first step, up to which a layer has not recovered
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
    """A rule that was broken for the first time, by whom since, and which optimizer's it is.

    `is_late` says that backward left the gradients well, and that what came after it did not.
    """

    step: int
    value: float
    parameters: list[int]
    n_steps: int = 1
    optimizer: str = ""
    is_late: bool = False

    def again(self, parameters: Sequence[int]) -> None:
        """Count one more step."""
        self.n_steps += 1
        self.parameters += [one for one in parameters if one not in self.parameters]


class Group:
    """Parameters that are stepped together, and what was usual among their steps.

    Args:
        members: which they are.
        about: all parameters.
        index: the step that has just been made, their first.

    Attributes:
        weights: which of them have more than one dimension.
        biases: which are called a bias.
        layers: the module that each belongs to.
        sizes: how many numbers each has.
        reached: which of them backward has reached at any time.
        n_steps: how many steps any of them was reached in.
        n_without: how many steps were made in which none of them had a gradient, while others had
            or had had one.
        n_ahead: how many steps were made before any parameter had a gradient.
        first: the first of those, or else of these.
        early: the norms of the first steps.
        recent: those of the last ones.
        piling: the steps running in which backward added to gradients of the step before; of
            these parameters alone, as optimizers may take turns.
        wiped: those in which all that backward left was 0 by the time of the write.
        wiped_of: the norm that backward left in the first of these, and the optimizer's name.
    """

    def __init__(
        self, members: tuple[int, ...], about: Sequence[ParameterName], index: int
    ) -> None:
        own = [about[one] for one in members]
        self.weights = np.asarray([len(one.shape) > 1 for one in own], bool)
        self.biases = np.asarray([one.name.endswith("bias") for one in own], bool)
        self.sizes = np.asarray([one.n_elements for one in own], np.float64)
        self.reached = np.zeros(len(own), bool)
        self.n_steps, self.n_without, self.n_ahead, self.first = 0, 0, 0, index
        self.early: list[float] = []
        self.recent: deque[float] = deque(maxlen=WINDOW)
        self.piling, self.wiped = Streak(), Streak()
        self.wiped_of = (0.0, "")
        self.layers = [one.name.rpartition(".")[0] for one in own]


class Health:
    """Holds the rules against one step after the other.

    Args:
        rules: their thresholds.

    Attributes:
        left: parameters that backward has reached since the last step, at the end.

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
        self.zeros: dict[int, Streak] = {}
        self.left: set[int] = set()
        self._groups: dict[tuple[int, ...], Group] = {}
        self._vanishing, self._growing = Streak(), Streak()
        self._grew_in, self._told_growing = -1, -1
        self._first_deepest = math.inf
        self._any_reached = False
        self._skipping = Streak()
        self._candidates: dict[str, tuple[int, float]] = {}

    def step(
        self,
        figures: StepFigures,
        members: tuple[int, ...],
        look: packed.Look,
        about: Sequence[ParameterName],
    ) -> None:
        """Take the step that has just been made."""
        self.n_read += 1
        group = self._groups.get(members)
        if group is None:
            group = self._groups[members] = Group(members, about, figures.index)
        if look.reached.any():
            group.first = group.first if group.n_steps else figures.index
            group.n_steps += 1
            group.reached |= look.reached
            self._any_reached = True
        elif self._any_reached and not packed.has(look.rows, packed.HAS_GRADIENT).any():
            group.first = group.first if group.n_steps + group.n_without else figures.index
            group.n_without += 1
        elif not self._any_reached:
            group.n_ahead += 1
        self._skipping.note(figures.index, figures.skipped)
        if self._skipping.length >= self.rules.skipped_steps:
            length = self._skipping.length
            self._note("SKIPPING", self._skipping.first, length, [], length)
        if figures.skipped:
            return
        self._pile(figures, group.piling)
        group.wiped.note(figures.index, figures.written_norm == 0 < figures.grad_norm)
        if group.wiped.length == 1:
            group.wiped_of = figures.grad_norm, next(iter(figures.optimizers), "")
        if not look.is_finite or _is_bad(figures.loss):
            self._bad(figures, members, look)
            return
        if _is_bad(figures.written_norm):
            self._spoilt(figures.index, members, look)
        if figures.loss != 0.0 and (self.zeros or look.has_zeros):
            self._dead(figures.index, members, look)
        self._depth(figures.index, members, look, group)
        self._size(figures, members, look, group)
        self._spike(figures, members, look.norms, group)

    def _pile(self, figures: StepFigures, piling: Streak) -> None:
        piling.note(figures.index, figures.piled_up)
        if piling.length >= self.rules.piling_steps:
            self._note("PILING_UP", piling.first, piling.length, [], piling.length)
            self.broken["PILING_UP"].optimizer = next(iter(figures.optimizers), "")

    def _note(
        self, kind: Kind, step: int, value: float, parameters: Sequence[int], n_steps: int = 1
    ) -> None:
        known = self.broken.get(kind)
        if known is None:
            self.broken[kind] = Broken(step, value, list(parameters), n_steps)
        else:
            known.again(parameters)

    def _bad(self, figures: StepFigures, members: tuple[int, ...], look: packed.Look) -> None:
        """NaN or Inf: the first parameter is the one that backward came to first."""
        bad = look.reached & ~np.isfinite(look.norms)
        order = [int(at) for at in np.argsort(look.rows["rank"], kind="stable") if bad[at]]
        some = [members[at] for at in order]
        self._note("NAN", figures.index, float(look.norms[order[0]]) if order else math.nan, some)
        if self._growing.length:
            self._explodes(figures.index)

    def _spoilt(self, index: int, members: tuple[int, ...], look: packed.Look) -> None:
        """NaN or Inf that backward did not leave: clipping or the user's own code made it."""
        if "NAN" in self.broken:
            return
        bad = packed.has(look.rows, packed.HAS_WRITTEN) & ~np.isfinite(look.rows["written"])
        some = [members[at] for at in np.flatnonzero(bad)]
        self.broken["NAN"] = Broken(index, math.nan, some, is_late=True)

    def _dead(self, index: int, members: tuple[int, ...], look: packed.Look) -> None:
        zero = look.read & (look.norms == 0)
        for at in np.flatnonzero(zero | (look.read & self._has_streak(members))):
            self.zeros.setdefault(members[at], Streak()).note(index, bool(zero[at]))

    def _has_streak(self, members: tuple[int, ...]) -> Any:
        return np.asarray([one in self.zeros for one in members])

    def _depth(self, index: int, members: tuple[int, ...], look: packed.Look, group: Group) -> None:
        """Compare layers of a kind by their depth, if any gradients differ enough."""
        is_steep = look.decades >= self.rules.decades
        if not is_steep and not self._began_vanished:
            self._vanishing.note(index, False)
            return
        some = look.reached & (look.norms > 0)
        layers = Layers.of(members, look, some & group.weights)
        self._falls(index, layers)
        if not is_steep:
            return
        self._rises(index, layers)
        self._rises(index, Layers.of(members, look, some & group.biases))

    def _falls(self, index: int, layers: Layers) -> None:
        """Compare the first layers with the last ones, to which backward came first."""
        fall = layers.fall(self.rules.decades)
        deepest = layers.deepest_norm
        vanishes = fall >= self.rules.decades and deepest < self.rules.low
        if vanishes and self.n_read == 1:
            self._first_deepest = deepest
        # Where nothing comes through, the last layers alone soon do what they can, and their
        # gradient falls too: that is no recovery.
        holds = vanishes or (self._began_vanished and 0 < deepest <= STILL * self._first_deepest)
        self._vanishing.note(index, holds)
        if holds:
            if self._vanishing.length == 1:
                self._candidates["vanishing"] = (layers.weakest, fall)
            if self._vanishing.length >= N_SUSTAINED:
                self._vanishes()

    @property
    def _began_vanished(self) -> bool:
        """Whether gradients vanished in the very first step and have not grown since."""
        return math.isfinite(self._first_deepest) and self._vanishing.length == self.n_read - 1

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
        look: packed.Look,
        usual: Group,
    ) -> None:
        norm = figures.grad_norm
        too_large = norm > self.rules.high
        grown = (
            too_large and len(usual.early) >= 3 and norm > self.rules.growth * _median(usual.early)
        )
        if too_large and (grown or _overwrites(look.rows)):
            largest = int(np.argmax(np.where(look.reached, look.norms, -1)))
            self._grows(figures.index, members[largest], norm)
            if _overwrites(look.rows, self.rules.growth):  # nothing is left of them to go on with
                self._explodes(figures.index)
        elif self._grew_in != figures.index:
            self._growing.note(figures.index, False)

    def _grows(self, index: int, parameter: int, norm: float) -> None:
        if self._grew_in == index:
            return  # both ways to see it in one step
        self._grew_in = index
        self._growing.note(index, True)
        if self._growing.length == 1:
            self._candidates["exploding"] = (parameter, norm)
        if self._growing.length >= N_SUSTAINED:
            self._explodes(index)

    def _explodes(self, index: int) -> None:
        """Tell of an explosion, at most once a step."""
        if self._told_growing == index:
            return
        self._told_growing = index
        parameter, norm = self._candidates["exploding"]
        length = self._growing.length
        self._note("EXPLODING", self._growing.first, norm, [parameter], length)

    def _spike(
        self, figures: StepFigures, members: tuple[int, ...], norms: Floats, usual: Group
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
        if few and "VANISHING" not in self.broken and self._vanishing.length == self.n_read > 0:
            self._vanishes()
        if few and "EXPLODING" not in self.broken and self._growing.length == self.n_read > 0:
            self._explodes(self._grew_in)
        found = dict(self.broken)
        if gone := self._wiped(ended) or self._dead_ones(ended):
            found["DEAD"] = gone
        if unused := self._never_reached(ended):
            first = min(first for first, _ in unused.values())
            found["UNUSED"] = Broken(first, 0.0, sorted(unused), max(n for _, n in unused.values()))
        return found

    def _wiped(self, ended: bool) -> Broken | None:
        """Tell of gradients that backward left and that were all 0 when the optimizer got them."""
        need = self.rules.dead_steps
        for members, group in self._groups.items():
            wiped = group.wiped
            if wiped.length >= need or (ended and _is_whole(wiped, group.n_steps)):
                norm, optimizer = group.wiped_of
                return Broken(wiped.first, norm, sorted(members), wiped.length, optimizer, True)
        return None

    def _dead_ones(self, ended: bool) -> Broken | None:
        dead = self._still_dead(ended)
        for one in self._cancelled(dead) if dead else ():
            del dead[one]
        if not dead:
            return None
        first = min(streak.first for streak in dead.values())
        return Broken(first, 0.0, sorted(dead), max(one.length for one in dead.values()))

    def _cancelled(self, dead: Collection[int]) -> set[int]:
        """Give the biases of layers whose weights live: they drop out of the loss, as in a difference.

        A layer whose output is 0, or is not used, gives its weight no gradient either.
        """
        found = set()
        for members, group in self._groups.items():
            places = range(len(members))
            alive = {
                group.layers[at]
                for at in places
                if group.weights[at] and group.reached[at] and members[at] not in dead
            }
            found |= {
                members[at]
                for at in places
                if group.biases[at] and members[at] in dead and group.layers[at] in alive
            }
        return found

    def _still_dead(self, ended: bool) -> dict[int, Streak]:
        need, members = self.rules.dead_steps, self._members() if self.zeros else {}
        return {
            one: streak
            for one, streak in self.zeros.items()
            if streak.length >= need or (ended and _is_whole(streak, members.get(one, (0, 0))[1]))
        }

    def _members(self) -> dict[int, tuple[int, int]]:
        """Give for each parameter its first step and how many steps it had, reached or not.

        Steps in which none of their parameters had a gradient count once others had one: one
        optimizer of two writes nothing. An optimizer that steps ahead of the first backward pass has
        missed none; and if nobody ever had a gradient, that is said in another way.
        """
        found: dict[int, tuple[int, int]] = {}
        for members, group in self._groups.items():
            n_steps = group.n_steps or group.n_without
            if n_steps:
                for one in members:
                    first, n = found.get(one, (group.first, 0))
                    found[one] = min(first, group.first), n + n_steps
        return found

    def _never_reached(self, ended: bool) -> dict[int, tuple[int, int]]:
        reached = set(self.left)
        for members, group in self._groups.items():
            reached.update(np.asarray(members)[group.reached].tolist())
        seen = self._members()
        ahead: Counter[int] = Counter()
        for members, group in self._groups.items():
            ahead.update(dict.fromkeys(members, group.n_ahead))
        need = self.rules.unused_steps
        if ended:
            need = min(need, max((n + ahead[one] for one, (_, n) in seen.items()), default=0))
        return {
            one: (first, n)
            for one, (first, n) in seen.items()
            if one not in reached and n + ahead[one] >= need > 0
        }


def _is_whole(streak: Streak, n_steps: int) -> bool:
    return n_steps >= N_SUSTAINED and streak.length == n_steps


def _is_bad(loss: object) -> bool:
    return isinstance(loss, float) and not math.isfinite(loss)


def _median(values: Sequence[float] | deque[float]) -> float:
    return float(np.median(list(values)))


def _overwrites(rows: packed.Rows, times: float = 1.0) -> bool:
    """Say whether the step changed the weights by more than so many times what they are."""
    update = packed.known(rows, "update", packed.HAS_UPDATE)
    weight = packed.known(rows, "weight", packed.HAS_WEIGHT)
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.nansum(update**2) > times**2 * np.nansum(weight**2) > 0)


def _is_spike(norm: float, usual: Group, spike: float) -> bool:
    """Compare with the last steps, with how they vary, and with what the first ones were like."""
    if len(usual.recent) < LEAST_WINDOW or norm <= spike * min(usual.recent):
        return False  # the least is no more than the median: most steps end here
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
        logs: of each gradient per element, see `packed.Look`.
        norms: their gradient's norm.
    """

    members: tuple[int, ...]
    logs: Floats
    norms: Floats

    @classmethod
    def of(cls, members: tuple[int, ...], look: packed.Look, which: Any) -> Layers:
        """Take parameters of one kind: weights, or biases; the two do not compare."""
        chosen = np.flatnonzero(which)
        chosen = chosen[np.argsort(look.rows["rank"][chosen], kind="stable")]
        return cls(tuple(members[at] for at in chosen), look.logs[chosen], look.norms[chosen])

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
