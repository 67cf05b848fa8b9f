from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nbinspect.blocks import Mark, Timeline
from nbinspect.render.curve import curve, thin

UNIT = st.floats(0, 1)


@given(st.lists(st.tuples(UNIT, UNIT), max_size=300).map(sorted), st.integers(1, 20))
def test_thinning_keeps_ends_peaks_and_valleys(steps, n_columns):
    kept = thin(steps, n_columns)
    assert len(kept) <= max(4 * n_columns, 4)
    assert [step for step in steps if step in kept] == [s for s in steps if s in set(kept)]
    assert kept == sorted(kept, key=lambda step: step[0])
    if steps:
        assert (kept[0], kept[-1]) == (steps[0], steps[-1])
        sizes, kept_sizes = [y for _, y in steps], [y for _, y in kept]
        assert (max(kept_sizes), min(kept_sizes)) == (max(sizes), min(sizes))


def test_a_hundred_thousand_steps_become_few_and_the_peak_stays():
    n_steps = 100_000
    sizes = [1000 + i % 7 for i in range(n_steps)]
    sizes[70_001] = 9_000
    times = tuple(i / 1000 for i in range(n_steps))
    mark = Mark(times[70_001], 9_000, "peak")
    drawn = curve(Timeline("t", times, tuple(sizes), (mark,)))
    assert len(drawn.points) <= 1201
    (x, y, number, label) = drawn.marks[0]
    assert max(drawn.points, key=lambda point: point[1]) == (x, y)
    assert (number, label) == (1, "peak")


@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 2**60)), max_size=50).map(sorted),
    st.none() | st.integers(0, 2**60),
)
def test_all_that_is_drawn_lies_in_the_unit_square(steps, baseline):
    times, sizes = tuple(t for t, _ in steps), tuple(s for _, s in steps)
    drawn = curve(Timeline("t", times, sizes, (), baseline))
    places = [xy for point in drawn.points for xy in point]
    places += [tick.at for tick in (*drawn.x_ticks, *drawn.y_ticks)]
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in [*places, drawn.baseline or 0])
    assert 2 <= len(drawn.y_ticks) <= 6
    assert 1 <= len(drawn.x_ticks) <= 6


def test_axes_have_round_numbers_with_units():
    drawn = curve(Timeline("t", (0.0, 4.2), (0, 4 * 1024**3)))
    assert [tick.label for tick in drawn.x_ticks] == ["0", "1", "2", "3", "4 s"]
    assert [tick.label for tick in drawn.y_ticks] == ["0 B", *(f"{n}.00 GiB" for n in (1, 2, 3, 4))]


def test_an_empty_timeline_has_nothing_to_draw():
    assert curve(Timeline("t", (), ())).points == ()
