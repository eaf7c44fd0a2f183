"""Edits of the configuration file are seen: by the native watch, and by polling where that fails."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import watchfiles

from mbxd.runtime.edits import POLL_S, RETRY_S, Edits

pytestmark = pytest.mark.trio


class Seen:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


async def test_polling_sees_an_edit_a_replacement_and_a_removal(tmp_path: Path, autojump_clock: trio.abc.Clock) -> None:
    path, seen = tmp_path / "config.toml", Seen()
    edits = Edits(str(path), seen)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(edits.poll_for_ever)
        await trio.sleep(10)
        assert seen.count == 0
        path.write_text("a = 1")
        await trio.sleep(RETRY_S + 0.1)
        assert seen.count == 1
        other = tmp_path / "new"
        other.write_text("a = 2")
        os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
        other.rename(path)
        await trio.sleep(RETRY_S + 0.1)
        assert seen.count == 2, "same size and time, another file"
        path.unlink()
        await trio.sleep(RETRY_S + 0.1)
        assert seen.count == 3
        await trio.sleep(60)
        assert seen.count == 3
        nursery.cancel_scope.cancel()


async def test_a_slow_poll_goes_on_beside_a_watch_that_says_nothing(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    path, seen = tmp_path / "config.toml", Seen()
    edits = Edits(str(path), seen)
    edits.native = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(edits.poll_for_ever)
        await trio.sleep(1)
        path.write_text("a = 1")
        await trio.sleep(POLL_S)
        assert seen.count == 1
        nursery.cancel_scope.cancel()


async def test_a_native_watch_that_fails_is_polled_and_tried_again(
    tmp_path: Path, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    async def broken(*_paths: Any, **_more: Any) -> AsyncIterator[Any]:
        tries.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if tries:
            raise RuntimeError("no inotify instance is left")
        yield

    monkeypatch.setattr(watchfiles, "awatch", broken)
    path, seen = tmp_path / "config.toml", Seen()
    edits = Edits(str(path), seen)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(edits.watch_for_ever)
        nursery.start_soon(edits.poll_for_ever)
        await trio.sleep(5)
        path.write_text("a = 1")
        await trio.sleep(RETRY_S + 0.1)
        assert seen.count == 1
        await trio.sleep(100)
        assert len(tries) >= 3
        nursery.cancel_scope.cancel()


async def test_the_native_watch_sees_an_edit(tmp_path: Path) -> None:
    path, seen = tmp_path / "config.toml", Seen()
    edits = Edits(str(path), seen)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(edits.watch_for_ever)
            while not edits.native:  # noqa: ASYNC110 - nothing announces it
                await trio.sleep(0.01)
            while not seen.count:
                path.write_text("a = 1")
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()  # and its thread ends soon: the daemon must not wait a minute for it
