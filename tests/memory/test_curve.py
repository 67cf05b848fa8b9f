"""What is added up from allocators' events, where no device is needed to know the answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbinspect._torch import AllocatorEvent, history_events, lacks_calls
from nbinspect.memory import tracker
from nbinspect.memory.exact import curve, own_blocks
from nbinspect.memory.tracker import Curve, DeviceTally, Origin


@given(st.lists(st.integers(-1000, 1000), max_size=300), st.integers(4, 20))
def test_thinning_loses_no_peak_and_no_end(sizes, most):
    before, tracker.MOST_STEPS = tracker.MOST_STEPS, most
    try:
        thin = Curve(0)
        for when, size in enumerate(sizes, start=1):
            thin.add(when, size)
    finally:
        tracker.MOST_STEPS = before
    everything = [0, *sizes]
    assert max(thin.sizes_bytes) == max(everything)
    assert min(thin.sizes_bytes) == min(everything)
    assert (thin.sizes_bytes[0], thin.sizes_bytes[-1]) == (0, everything[-1])
    assert thin.times_ns == sorted(thin.times_ns)
    assert len(thin.sizes_bytes) <= 2 * most + 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 100), st.booleans()), max_size=80))
def test_bytes_at_the_peak_add_up_to_the_peak(steps):
    tally, live = DeviceTally(0), {}
    origins = {name: Origin(None, name) for name in "abc"}  # a place is one object
    for name, size, grows in steps:
        origin = origins[name]
        if grows:
            live[name] = live.get(name, 0) + size
            tally.change(size, origin)
        elif live.get(name, 0) >= size:
            live[name] -= size
            tally.change(-size, origin)
    assert sum(tally.at_peak.values()) == tally.peak_bytes
    assert tally.now_bytes == sum(live.values())
    assert all(size >= 0 for size in tally.at_peak.values())


def test_the_profilers_frees_of_older_blocks_are_left_to_us():
    events = [
        AllocatorEvent(1, 0xA, 100, "cpu"),
        AllocatorEvent(2, 0xB, -70, "cpu"),  # given in an earlier recording
        AllocatorEvent(3, 0xA, -100, "cpu"),
        AllocatorEvent(4, 0xA, 50, "cpu"),
    ]
    mine = own_blocks(events)
    assert [one.size_bytes for one in mine] == [100, -100, 50]
    assert curve(mine, [(2, 70)], 0).sizes_bytes == [0, 100, 30, -70, -20]


def test_cudas_log_is_read_as_torch_counts_allocated_bytes():
    trace = [
        {"action": "segment_alloc", "addr": 1, "size": 2 << 20, "time_us": 5},
        {"action": "alloc", "addr": 1, "size": 512, "time_us": 5},  # before the cell
        {"action": "alloc", "addr": 2, "size": 1024, "time_us": 11},
        {"action": "free_requested", "addr": 1, "size": 512, "time_us": 12},
        {"action": "free_completed", "addr": 1, "size": 512, "time_us": 12},
        {"action": "oom", "size": 1 << 40, "time_us": 13, "device_free": 0},
        {"action": "snapshot", "addr": 0, "size": 0, "time_us": 14},
    ]
    events = history_events(trace, 10_000, "cuda:0")
    assert events == [
        AllocatorEvent(11_000, 2, 1024, "cuda:0"),
        AllocatorEvent(12_000, 1, -512, "cuda:0"),
    ]
    assert curve(events, [], 10_000).sizes_bytes == [0, 1024, 512]


@pytest.mark.parametrize(
    ("log", "lacks"),
    [
        ([100, -100, 50], False),
        ([-100, 50], True),  # a ring with room for fewer
        ([100, 50], True),  # frees left out, by `skip_actions`
        ([50], True),  # `"state"`: room for one
        ([], True),
        ([100, -100, 50, -7], False),  # one from before the watch
    ],
)
def test_a_log_that_lacks_calls_is_not_believed(log, lacks):
    events = [AllocatorEvent(n, n, size, "cuda:0") for n, size in enumerate(log)]
    assert lacks_calls(events, n_given=2, n_taken=1) is lacks
