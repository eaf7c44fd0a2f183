"""Threads that ask the mail store.

Owns a few threads, and the way there and back: half of what a trip to trio's own worker threads costs. Never knows what
is asked.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import trio

T = TypeVar("T")


class Closed(Exception):
    """Nothing is asked any more."""


class _Question:
    """What a task waits for."""

    __slots__ = ("act", "error", "result", "task")

    def __init__(self, act: Callable[[], Any], task: trio.lowlevel.Task) -> None:
        self.act = act
        self.task = task
        self.result: Any = None
        self.error: BaseException | None = None


class Readers:
    """At most `most` threads, another one begun when the others are busy. They end with `close`."""

    def __init__(self, most: int) -> None:
        """No thread yet."""
        self._most: Final = most
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._threads = 0
        self._open = 0
        self._closed = False
        self._lock = threading.Lock()

    async def ask(self, act: Callable[[], T]) -> T:
        """What a function gives or raises, in a thread; questions wait in order. Raises Closed after `close`.

        As with trio's threads, one who is cancelled meanwhile waits for the answer all the same.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        question = _Question(act, trio.lowlevel.current_task())
        with self._lock:  # nothing may come behind what ends the threads
            if self._closed:
                raise Closed
            self._questions.put(question)
        self._open += 1
        if self._threads < min(self._open, self._most):
            self._threads += 1
            token = trio.lowlevel.current_trio_token()
            threading.Thread(target=self._run, args=(token,), name="mail-reader", daemon=True).start()
        await trio.lowlevel.wait_task_rescheduled(_stay)
        self._open -= 1
        if question.error is not None:
            raise question.error
        found: T = question.result
        return found

    def close(self) -> None:
        """End the threads after what was asked; does not wait for that. Any thread may."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._questions.put(None)

    def _run(self, token: trio.lowlevel.TrioToken) -> None:
        while True:
            question = self._questions.get()
            if question is None:
                self._questions.put(None)  # for the others
                return
            try:
                question.result = question.act()
            except BaseException as error:
                question.error = error
            try:
                token.run_sync_soon(trio.lowlevel.reschedule, question.task)
            except trio.RunFinishedError:
                return
            del question  # its answer may be large, and the next one be long in coming


def _stay(_raise_cancel: Any) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
