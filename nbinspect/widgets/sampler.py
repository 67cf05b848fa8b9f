"""One thread that reads the memory counters for every live view there is."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from nbinspect.blocks import Bar

MIN_HZ, MAX_HZ = 0.2, 20.0
"""Above 1000 messages a second Jupyter drops some, the cell's own status among them."""

_MAX_SHARE = 0.007  # of a core; Jupyter's own threads, which send what changes, need a little too
_MAX_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What the counters said at one moment.

    Attributes:
        time_s: when, on `time.monotonic`'s clock.
        bars: one bar per device, empty if there was no reading.
        error: why there was none, "" if there was.
    """

    time_s: float
    bars: tuple[Bar, ...]
    error: str = ""


Listener = Callable[[Sample], None]


def read() -> Sample:
    """Read the counters now; a gauge that raises is a sample with its reason."""
    from nbinspect.memory import gauges

    now = time.monotonic()
    try:
        return Sample(now, gauges.gauges())
    except Exception as error:
        return Sample(now, (), f"{type(error).__name__}: {error}")


def checked_hz(hz: float) -> float:
    """Give `hz` as a float.

    Raises:
        ValueError: `hz` is no number from 0.2 to 20.
    """
    message = f"hz must be a number from {MIN_HZ:g} to {MAX_HZ:g}, not {hz!r}"
    try:
        rate = float(hz)
    except (TypeError, ValueError):
        raise ValueError(message) from None
    if not MIN_HZ <= rate <= MAX_HZ:
        raise ValueError(message)
    return rate


class Sampler:
    """Calls its listeners with a fresh sample, at the rate of the fastest of them.

    The thread exists only while somebody listens. It is a daemon and is told to stop at exit,
    so it never delays the end of the process.

    Attributes:
        n_samples: how many were taken so far.
    """

    def __init__(self) -> None:
        self.n_samples = 0
        self._lock = threading.Lock()
        self._listeners: dict[Listener, float] = {}
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def add(self, listener: Listener, hz: float) -> None:
        """Call `listener` from now on, at least `hz` times a second if that is cheap."""
        with self._lock:
            self._listeners[listener] = hz
            ended = self._restart()
        _join(ended)

    def remove(self, listener: Listener) -> None:
        """Stop calling `listener`; the thread ends with the last one."""
        with self._lock:
            if self._listeners.pop(listener, None) is None:
                return
            ended = self._restart()
        _join(ended)

    def _restart(self) -> threading.Thread | None:
        """Let a new thread take over at the present rate; give the one that now ends."""
        ended = self._thread
        self._end()
        if self._listeners:
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._run,
                args=(1 / max(self._listeners.values()), self._stop),
                name="nbinspect-live",
                daemon=True,
            )
            self._thread.start()
            atexit.register(self._end)
        return ended

    def _end(self) -> None:
        self._stop.set()
        self._thread = None
        atexit.unregister(self._end)

    def _run(self, period_s: float, stop: threading.Event) -> None:
        cost_s, pause_s = 0.0, period_s
        while not stop.wait(pause_s):
            began = time.thread_time()
            self._sample(stop)
            cost_s += 0.2 * (time.thread_time() - began - cost_s)
            pause_s = max(period_s, min(cost_s / _MAX_SHARE, _MAX_PAUSE_S))

    def _sample(self, stop: threading.Event) -> None:
        sample = read()
        self.n_samples += 1
        for listener in tuple(self._listeners):
            if stop.is_set():
                return
            with contextlib.suppress(Exception):  # one broken page must not stop the others
                listener(sample)


def _join(thread: threading.Thread | None) -> None:
    """Wait for a thread that was told to stop, but not for one stuck in a driver call."""
    if thread is not None and thread is not threading.current_thread():
        thread.join(2.0)


SAMPLER = Sampler()
