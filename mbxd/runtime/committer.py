"""The thread that writes batches: one at a time, in order, and nothing else.

Owns the thread. A failure is handed to the event loop, which lets it end the process; nothing is retried.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from mbxd.runtime.poller import Poller
from mbxd.store.log import Log

SWITCH_S = 0.0005
"""How long a thread may keep the interpreter while another wants it; Python's own 5 ms would hold up a commit, and
the event loop while a snapshot is encoded."""

Done = Callable[[int, BaseException | None], None]
"""Called in the event loop with the newest durable seq, or with what failed."""


class Committer(Protocol):
    """Writes batches in the order given; `done` is called once for each."""

    def start(self, done: Done) -> None:
        """Begin; called from the event loop."""
        ...

    def submit(self, records: Sequence[bytes]) -> None:
        """Write this batch; at most one may be in flight."""
        ...

    def stop(self) -> None:
        """End after what was submitted."""
        ...


class ThreadCommitter:
    """A dedicated thread: a hop costs less than a worker of a pool, and a slow disk delays nobody else."""

    def __init__(self, log: Log, poller: Poller) -> None:
        """`log` belongs to the thread from `start` on; `poller`, which must be running, hears of its batches."""
        self._log = log
        self._poller = poller
        self._queue: queue.SimpleQueue[Sequence[bytes] | None] = queue.SimpleQueue()
        self._results: deque[tuple[int, BaseException | None]] = deque()
        self._thread: threading.Thread | None = None
        self._ends: tuple[int, int] | None = None

    def start(self, done: Done) -> None:
        """Start the thread."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        reader, writer = self._ends = os.pipe()
        self._poller.add(reader, partial(self._tell, reader, done))
        self._thread = threading.Thread(target=self._run, args=(writer,), name="committer", daemon=True)
        self._thread.start()

    def submit(self, records: Sequence[bytes]) -> None:
        """Hand a batch over."""
        self._queue.put(records)

    def stop(self) -> None:
        """Let the thread end, and wait for it: the loop is about to go."""
        if self._thread is None or self._ends is None:
            return
        self._queue.put(None)
        self._thread.join(timeout=10)
        self._poller.remove(self._ends[0])
        if not self._thread.is_alive():
            for end in self._ends:
                os.close(end)

    def _run(self, writer: int) -> None:
        while (records := self._queue.get()) is not None:
            try:
                result: tuple[int, BaseException | None] = self._log.append(records), None
            except BaseException as error:  # whatever it was: the event loop decides, and it decides to die
                result = 0, error
            self._results.append(result)
            os.write(writer, b"!")  # quicker than trio's own way into its loop, which changes tasks for it

    def _tell(self, reader: int, done: Done) -> None:
        os.read(reader, 64)
        while self._results:
            done(*self._results.popleft())
