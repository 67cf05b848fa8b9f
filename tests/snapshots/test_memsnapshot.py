"""Snapshot files: totals, curves and lines against what was put in; hostile files refused."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_snapshots import (
    BACKWARD,
    CELL,
    FORWARD,
    KERNEL,
    MIB,
    START_US,
    Program,
    old,
    snapshot,
    training,
    write,
)

from nbinspect import AllocatorSnapshot, memsnapshot
from nbinspect.snapshots import record_snapshot
from nbinspect.snapshots.answer import as_record
from nbinspect.snapshots.replay import MOST_MOMENTS


def lines(record: AllocatorSnapshot, time_s: float) -> dict[str, int]:
    return {
        (one.where.label if one.where else one.function): one.size_bytes
        for one in record.alive_at(time_s)
    }


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("form", [training, lambda: old(training())], ids=["new", "old"])
def test_totals_curve_peak_and_lines(tmp_path, form, packed):
    record = memsnapshot(write(tmp_path / "run.pickle", form(), packed=packed))
    assert record.reserved_bytes == 32 * MIB
    assert record.allocated_bytes == 7 * MIB
    assert record.active_bytes == 8 * MIB
    assert record.peak_bytes == 15 * MIB
    assert [one.allocated_bytes // MIB for one in record.timeline] == [
        6, 5, 5, 13, 15, 15, 7, 7, 8, 7,
    ]  # fmt: skip
    assert record.timeline[-1].active_bytes == 8 * MIB
    assert {one.reserved_bytes for one in record.timeline} == {32 * MIB}
    assert lines(record, record.peak_time_s) == {
        "/home/me/model.py:12": 8 * MIB,
        "/home/me/data.py:3": 4 * MIB,
        "In[7] line 2": 2 * MIB,
        "": 1 * MIB,
    }
    assert sum(lines(record, record.timeline[-1].time_s).values()) == record.allocated_bytes
    (failed,) = record.oom
    assert (failed.asked_bytes, failed.free_bytes) == (64 * MIB, 3 * MIB)
    assert failed.where is not None
    assert failed.where.label == "/home/me/model.py:12"
    assert record.has_times == bool(record.annotations) == (form is training)
    backward = [one for one in record.allocations if one.function == "backward"]
    assert [(one.size_bytes, one.where) for one in backward] == [(MIB, None)]
    never = [one for one in record.allocations if one.end_s is None]
    assert sum(one.size_bytes for one in never) == 7 * MIB


def test_the_times_are_seconds_since_the_log_began(tmp_path):
    record = memsnapshot(write(tmp_path / "run.pickle", training()))
    assert record.peak_time_s == pytest.approx(0.003)
    (step,) = record.annotations
    assert (step.name, step.start_s, step.end_s) == ("step", 0.001, 0.003)


def test_the_view_says_it_all_and_escapes(tmp_path):
    found = training()
    found["device_traces"][0][2]["frames"] = [
        {"name": "<script>alert(1)</script>", "filename": "<script>.py", "line": 1}
    ]
    record = memsnapshot(write(tmp_path / "run.pickle", found))
    said = record.text()
    assert said.startswith("The peak was 15.0 MiB at 3 ms, on GPU 0. At the end, 7.00 MiB")
    for part in ("Alive at the peak", "before the log began", "out of memory", "In[7] line 2"):
        assert part in said
    assert "<script" not in record.html()
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", record.html())
    assert AllocatorSnapshot.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_segments_without_a_log_and_a_bare_list():
    found = training()
    record = as_record({"segments": found["segments"], "device_traces": []}, "x")
    assert (record.peak_bytes, record.n_entries) == (7 * MIB, 0)
    assert "There is no log" in record.text()
    empty = as_record({"segments": [], "device_traces": []}, "x")
    assert (empty.reserved_bytes, empty.timeline[0].allocated_bytes) == (0, 0)
    assert empty.text()


def test_a_bare_list_of_segments(tmp_path):
    record = memsnapshot(write(tmp_path / "s.pickle", training()["segments"]))
    assert record.allocated_bytes == 7 * MIB


def test_several_devices():
    first, second = Program(8 * MIB), Program(16 * MIB, device=1, address=1 << 40)
    first.alloc(2 * MIB, FORWARD)
    for _ in range(3):
        second.alloc(4 * MIB, FORWARD)
    found = snapshot(first, second)
    record = as_record(found, "x")
    assert (record.device, record.allocated_bytes, record.peak_bytes) == (1, 14 * MIB, 12 * MIB)
    one = as_record(found, "x", 0)
    assert (one.reserved_bytes, one.peak_bytes) == (8 * MIB, 2 * MIB)
    with pytest.raises(ValueError, match="no device 5 in this snapshot; it has 0, 1"):
        as_record(found, "x", 5)


def test_cells_are_named_by_tag_and_a_foreign_kernels_by_file():
    program = Program(8 * MIB)
    program.alloc(MIB, KERNEL)
    program.alloc(MIB, KERNEL)
    program.trace[0]["user_metadata"] = "In[12]"
    names = [one.where.label for one in as_record(snapshot(program), "x").allocations if one.where]
    assert names == ["In[12] line 4", "a cell (123456.py):4"]


def test_fragments_are_named_with_the_setting_unless_it_is_on():
    program = Program(64 * MIB)
    for number in range(16):
        at = program.alloc(4 * MIB, FORWARD)
        if number % 2:
            program.free(at)
    found = snapshot(program)
    assert "expandable_segments:True" in as_record(found, "x").text()
    found["allocator_settings"]["expandable_segments"] = True
    assert "expandable_segments:True" not in as_record(found, "x").text()


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/nbinspect-was-here",)


HOSTILE = {
    "a call": (pickle.dumps(Evil()), r"names (posix|nt)\.system, which a snapshot never does"),
    "a global": (pickle.dumps({"segments": [Path]}), "which a snapshot never does"),
    "a persistent id": (b"\x80\x04P1\n.", "refers to objects outside"),
    "nothing": (b"", "it is cut off"),
    "text": (b"hello world", "it is no pickle"),
    "a picture": (b"\x89PNG\r\n\x1a\n", "is no snapshot: it"),
    "cut off": (pickle.dumps(training())[:-40], "it is cut off"),
    "gzip cut off": (gzip.compress(pickle.dumps(training()))[:-40], "no whole gzip file"),
    "torch.save": (b"PK\x03\x04rest", "a zip archive, as torch.save writes"),
    "another pickle": (pickle.dumps([1, 2]), "a segment has no list of blocks"),
    "a dict": (pickle.dumps({"model": 1}), "has no list of segments"),
    "a segment of text": (pickle.dumps({"segments": ["x"]}), "has no list of blocks"),
    "sizes of text": (
        pickle.dumps({"segments": [{"blocks": [{"size": "x"}], "total_size": 1}]}),
        "size is no number",
    ),
    "traces of text": (pickle.dumps({"segments": [], "device_traces": "x"}), "are no lists"),
    "shared for ever": (
        pickle.dumps({"segments": [{"blocks": [{}] * 3000}] * 3000}),
        "more than 5,000,000 entries",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_and_broken_files(tmp_path, name):
    data, said = HOSTILE[name]
    path = tmp_path / "run.pickle"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=said) as caught:
        memsnapshot(path)
    assert "\n" not in str(caught.value)
    assert not Path("/tmp/nbinspect-was-here").exists()


def test_a_file_that_unpacks_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("nbinspect.snapshots.unpickling.MOST_BYTES", 1 << 20)
    path = tmp_path / "run.pickle"
    path.write_bytes(gzip.compress(bytes(4 << 20)))
    with pytest.raises(ValueError, match="unpacks to more than"):
        memsnapshot(path)
    path.write_bytes(bytes(2 << 20))
    with pytest.raises(ValueError, match="is larger than"):
        memsnapshot(path)


BOMBS = {
    "a memo of 3 GiB": b"\x80\x04]r" + (400_000_000).to_bytes(4, "little") + b".",
    "a memo without end": b"]p99999999999999\n.",
    "a text of 1 TiB": b"\x80\x04\x8d" + (1 << 40).to_bytes(8, "little") + b"x.",
    "bytes of 8 GiB": b"\x80\x05\x96" + (1 << 33).to_bytes(8, "little") + b"x.",
    "a number of 2,000,000 figures": b"L" + b"9" * 2_000_000 + b"L\n.",
    "a number that is none": b"F1\x07\n.",
    "a list 200,000 deep": b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "a key that takes for ever": (
        b"\x80\x04})" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(60)) + b"K\x01s."
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_files_that_ask_for_time_or_memory_without_end(tmp_path, monkeypatch, name):
    monkeypatch.setattr("nbinspect.snapshots.unpickling.LEAST_S", 3)
    path = tmp_path / "run.pickle"
    path.write_bytes(BOMBS[name])
    with pytest.raises(ValueError, match=r"^run\.pickle is no snapshot: ") as caught:
        memsnapshot(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("form", [training, lambda: old(training())], ids=["new", "old"])
def test_a_file_cut_off_or_spoilt_anywhere_is_a_record_or_one_line(tmp_path, monkeypatch, form):
    monkeypatch.setattr("nbinspect.snapshots.reading.tried", lambda _data: None)  # as above
    whole, path, chance = pickle.dumps(form()), tmp_path / "run.pickle", random.Random(0)
    spoilt = [whole[:end] for end in range(0, len(whole), 7)]
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 2, 5])):
            data[chance.randrange(len(data))] = chance.choice(b"\x00()}]est.uhNKMXI\xff")
        spoilt.append(bytes(data))
    for data in spoilt:
        path.write_bytes(data)
        try:
            assert isinstance(memsnapshot(path), AllocatorSnapshot)
        except ValueError as error:
            assert str(error).isprintable()  # noqa: PT017 - most of them raise, none must crash


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        memsnapshot(tmp_path / "none.pickle")
    with pytest.raises(ValueError, match="no CUDA device"):
        record_snapshot()


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3) | st.booleans(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "segments",
                        "blocks",
                        "size",
                        "device_traces",
                        "total_size",
                        "state",
                        "action",
                        "addr",
                        "frames",
                        "stream",
                        "time_us",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
    )
)
@settings(max_examples=200)
def test_whatever_is_in_it_becomes_a_record_or_a_value_error(tmp_path_factory, found):
    path = write(tmp_path_factory.getbasetemp() / "any.pickle", found)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(ValueError):
        patch.setattr("nbinspect.snapshots.reading.tried", lambda _data: None)  # has its own test
        assert isinstance(memsnapshot(path), AllocatorSnapshot)


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=60))
@settings(max_examples=60)
def test_the_curve_is_what_the_calls_add_up_to(calls):
    program, held, alive, peak = Program(1 << 30), 0, [], 0
    for size, frees in calls:
        if frees and alive:
            at, freed = alive.pop(0)
            program.free(at)
            held -= freed
        else:
            alive.append((program.alloc(size * 512, CELL if size % 2 else BACKWARD), size * 512))
            held += size * 512
        peak = max(peak, held)
    record = as_record(snapshot(program), "x")
    assert (record.allocated_bytes, record.peak_bytes) == (held, peak)
    assert record.timeline[-1].allocated_bytes == held
    assert sum(one.size_bytes for one in record.alive_at(record.peak_time_s)) == peak


@given(st.lists(st.tuples(st.integers(1, 20_000), st.booleans()), max_size=40), st.integers(1, 50))
@settings(max_examples=60)
def test_what_was_alive_adds_up_to_the_curve_whatever_clocks_and_rounding_do(calls, n_per_tick):
    program, alive = Program(1 << 30), []
    for size, frees in calls:
        if frees and alive:
            program.free(alive.pop(len(alive) // 2))
        else:
            alive.append(program.alloc(size, FORWARD if size % 2 else CELL))
    for at, one in enumerate(program.trace):
        one["time_us"] = START_US + at // n_per_tick * (-1 if n_per_tick > 40 else 1)
    found = snapshot(program)
    record = as_record(found, "x")
    times = [one.time_s for one in record.timeline]
    assert times == sorted(times)
    assert sum(one.size_bytes for one in record.alive_at(record.peak_time_s)) == record.peak_bytes
    left = sum(one.size_bytes for one in record.alive_at(times[-1]))
    assert left == record.allocated_bytes == found["segments"][0]["allocated_size"]
    for one in record.timeline[1:]:  # the first is what was there before the first entry
        assert sum(line.size_bytes for line in record.alive_at(one.time_s)) == one.allocated_bytes


@pytest.mark.parametrize("name", ["training", "inference"])
def test_a_real_file_adds_up(name):
    path = Path(os.environ.get("NBINSPECT_SNAPSHOTS", "")) / f"{name}.pickle.gz"
    if not path.exists():
        pytest.skip("NBINSPECT_SNAPSHOTS names no folder with real files")
    record = memsnapshot(path)
    found = pickle.loads(gzip.decompress(path.read_bytes()))
    for key, told in [("total_size", record.reserved_bytes), ("active_size", record.active_bytes)]:
        assert told == sum(one[key] for one in found["segments"])
    for time_s, size in [
        (record.peak_time_s, record.peak_bytes),
        (record.timeline[-1].time_s, record.allocated_bytes),
    ]:
        assert sum(one.size_bytes for one in record.alive_at(time_s)) == size


@pytest.mark.parametrize(
    ("key", "value"),
    [("size", -1), ("size", 1 << 63), ("time_us", -1), ("time_us", 10**30), ("size", True)],
)
def test_numbers_that_cannot_be_are_refused(key, value):
    found = training()
    found["device_traces"][0][2][key] = value
    with pytest.raises(ValueError, match=rf"an entry's {key} is (out of range|no number)"):
        as_record(found, "x")


def test_20_000_entries_take_under_2_seconds(tmp_path):
    program = Program(1 << 34)
    stacks = [
        [*FORWARD, {"name": "f", "filename": f"/home/me/{n}.py", "line": n}] * 20
        for n in range(200)
    ]
    for number in range(6_700):
        program.free(program.alloc(512 * (1 + number % 900), stacks[number % 200]))
    assert len(program.trace) > 20_000
    path = write(tmp_path / "run.pickle", snapshot(program))
    start = time.process_time()
    record = memsnapshot(path)
    record.view()
    assert time.process_time() - start < 2
    assert len(record.timeline) <= MOST_MOMENTS + 2
    assert max(one.allocated_bytes for one in record.timeline) == record.peak_bytes


def test_totals_are_those_of_torchs_own_viewer(tmp_path):
    path = write(tmp_path / "run.pickle", training())
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "stats", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    record = memsnapshot(path)
    assert f"total_reserved: {record.reserved_bytes / MIB:.1f}MiB" in done.stdout
    assert f"total_allocated: {record.requested_bytes / MIB:.1f}MiB" in done.stdout
    assert f"segments: {len(record.segments)}" in done.stdout


def test_it_needs_no_torch(tmp_path):
    path = write(tmp_path / "run.pickle", training())
    code = (
        f"import sys, nbinspect; r = nbinspect.memsnapshot({str(path)!r}); r.text(); r.html(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
