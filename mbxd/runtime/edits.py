"""Notices that the configuration file was edited.

Owns the watch on its directory. Events are hints: the file is read and compared anyway, and a slow poll goes
on where the native watch fails (no inotify instance left, a network mount).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import trio
import watchfiles

log = logging.getLogger("mbxd.edits")

POLL_S = 30.0
RETRY_S = 2.0
STEP_MS = 1_000
"""How often the native watch looks; a shorter step would cost idle CPU."""


class Edits:
    """Calls `changed` in the event loop whenever the file's contents may be others."""

    def __init__(self, path: str, changed: Callable[[], None]) -> None:
        """`path`: the file; its directory need not exist yet."""
        self._path = path
        self._changed = changed
        self._seen = stamp(path)
        self.native = False

    def look(self) -> None:
        """Compare, and tell when it changed."""
        now = stamp(self._path)
        if now != self._seen:
            self._seen = now
            self._changed()

    async def poll_for_ever(self) -> None:
        """The slow way, always on."""
        looked = trio.current_time()
        while True:
            await trio.sleep(RETRY_S)  # the native watch may fail at any moment
            if not self.native or trio.current_time() - looked >= POLL_S:
                looked = trio.current_time()
                self.look()

    async def watch_for_ever(self) -> None:
        """The quick way, where it works."""
        directory = os.path.dirname(self._path)
        told = False
        while True:
            if stamp(directory) is not None:
                problem = await self._watch(directory)
                self.native = False
                if problem is not None and not told:
                    told = True
                    log.warning("configuration is polled", extra={"why": str(problem)[:200]})
            await trio.sleep(POLL_S)

    async def _watch(self, directory: str) -> Exception | None:
        """Watch until that fails; why it did."""
        stop, problem = trio.Event(), None
        self.native = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_set_when_cancelled, stop)
            try:
                await self._follow(directory, stop)
            except Exception as error:  # watchfiles raises errors of its own making: any of them means "poll"
                problem = error
            nursery.cancel_scope.cancel()
        return problem

    async def _follow(self, directory: str, stop: trio.Event) -> None:
        name = os.path.basename(self._path)
        async for changes in watchfiles.awatch(
            directory, recursive=False, step=STEP_MS, debounce=STEP_MS, stop_event=stop, rust_timeout=60_000
        ):
            if any(os.path.basename(path) == name for _, path in changes):
                self.look()


async def _set_when_cancelled(event: trio.Event) -> None:
    """The watch's thread can't be cancelled: without this it would hold up the daemon's end by its whole timeout."""
    try:
        await trio.sleep_forever()
    finally:
        event.set()


def stamp(path: str) -> tuple[int, int, int] | None:
    """What tells one version of a file from another without reading it."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
