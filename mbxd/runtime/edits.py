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
        while True:
            await trio.sleep(RETRY_S if not self.native else POLL_S)
            self.look()

    async def watch_for_ever(self) -> None:
        """The quick way, where it works."""
        directory = os.path.dirname(self._path)
        told = False
        while True:
            if stamp(directory) is not None:
                try:
                    await self._watch(directory)
                except Exception as error:  # watchfiles raises errors of its own making: any of them means "poll"
                    self.native = False
                    if not told:
                        told = True
                        log.warning("configuration is polled", extra={"why": str(error)[:200]})
            await trio.sleep(POLL_S)

    async def _watch(self, directory: str) -> None:
        stop = trio.Event()
        self.native = True
        name = os.path.basename(self._path)
        async for changes in watchfiles.awatch(
            directory,
            recursive=False,
            step=STEP_MS,
            debounce=STEP_MS,
            stop_event=stop,
            rust_timeout=60_000,
            raise_interrupt=False,
        ):
            if any(os.path.basename(path) == name for _, path in changes):
                self.look()


def stamp(path: str) -> tuple[int, int, int] | None:
    """What tells one version of a file from another without reading it."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
