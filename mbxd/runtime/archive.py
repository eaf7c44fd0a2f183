"""The Git archive: a projection of the registry's log, off the hot path.

Owns how far the archive is and how it catches up. The queue is a cursor: what is newer than the newest commit's
position. A bounded tail of changes saves reading them again; when it was outrun, or after a start, they come
from the log, and when the log no longer has them the whole registry is compared. Only durable changes are
archived. Nothing here ever delays or fails a request.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

import trio

from mbx_wire.archive import ArchiveRebuildResult, ArchiveStatusResult, ArchiveVerifyResult
from mbxd.core import events as ev
from mbxd.core import profiles
from mbxd.core.profiles import Entry, Picture
from mbxd.core.state import Identity
from mbxd.ports import Clock, PastCommit, Repo, RepoFailed, RepoMoved, RunSync, Tip
from mbxd.runtime import replaying, verifying
from mbxd.runtime.engine import Engine
from mbxd.runtime.replaying import Plan
from mbxd.runtime.verifying import Difference

log = logging.getLogger("mbxd.archive")

TAIL_MAX = 8192
"""Changes kept in memory, about 300 bytes each."""
GATHER_S = 0.1
"""How long a change waits for others to share its commit."""
BURST = 50
GATHER_MAX_S = 0.5
"""While BURST changes and more come in GATHER_S, they wait for the end of it: this long, or until they are many."""
DUTY = 2.0
"""A commit is worth a pause of this many times what it took, so that a large archive stays cheap."""
CREDIT_S = 2.0
"""Pauses of this length in all may be put off, so that a burst is archived as soon as it is over."""
PAUSE_MAX_S = 5.0
RETRY_MIN_S, RETRY_MAX_S = 1.0, 60.0
CLOSE_S = 2.0
CHECKOUT_DUTY = 10.0
CHECKOUT_LATE_S = 1.0
"""How long the files wait for more that is on its way to the archive: a burst is checked out once, after it."""
SEEN_S = 1.0
"""How long a reader waits for the commit of what it knows to have happened."""


class Archive:
    """Keeps the repository up with the registry. One task writes; others wait for it."""

    def __init__(
        self, engine: Engine, repo: Repo, run_sync: RunSync, clock: Clock, degraded: dict[str, str], path: str
    ) -> None:
        """`degraded`: where the daemon collects what is wrong with it. Hooks itself into the engine."""
        self._engine = engine
        self._repo = repo
        self._run_sync = run_sync
        self._clock = clock
        self._degraded = degraded
        self._path = path
        self._tail: deque[Entry] = deque()
        self._since = engine.staged_seq  # the tail has every change after it
        self._outrun = False
        self._changes = 0
        self._pending_since: float | None = None
        # The name of each identity by number: a renaming doesn't say what it was before.
        self._names: list[str | None] = []
        for identity in engine.state.identities.values():
            self._remember(identity.id, identity.name)
        self._tip: Tip | None = None
        self._known = False  # whether _tip is what we left there
        self._seq: int | None = None
        self._error: str | None = None
        self._retry_at: float | None = None
        self._retry_s = RETRY_MIN_S
        self._checkout_error: str | None = None
        self._closing = False
        self._turn = trio.Lock()
        self._wake = trio.Event()
        self._hurry = False
        self._rested_at = 0.0
        self._moved = trio.Event()
        self._arrival = trio.Event()
        self._counts = {"commits": 0, "compared": 0, "failures": 0, "longest_ms": 0.0}
        engine.on_staged.append(self._on_staged)
        engine.on_durable.append(self._on_durable)

    # -- what happens ----------------------------------------------------------------------------------------

    def _remember(self, number: int, name: str) -> None:
        names = self._names
        if number == len(names):
            names.append(name)
            return
        if number > len(names):
            names.extend([None] * (number + 1 - len(names)))
        names[number] = name

    def _on_staged(self, seq: int, event: ev.Event) -> None:
        if not profiles.is_change(event):
            return
        before = None
        if isinstance(event, ev.Renamed):
            before = self._names[event.identity]
            self._remember(event.identity, event.name)
        elif isinstance(event, ev.IdentityRegistered):
            self._remember(event.id, event.name)
        if not self._tail:
            self._pending_since = trio.current_time()
        self._tail.append(Entry(seq, event, before))
        self._changes += 1
        if len(self._tail) > TAIL_MAX:
            # Git is slower than the registry for now: what is left out is read from the log when its turn comes.
            self._tail.clear()
            self._since = seq
            self._outrun = True

    def _on_durable(self, _seq: int, event: ev.Event) -> None:
        if profiles.is_change(event):
            self._wake.set()

    # -- the loops -------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Archive what changes and bring the checked-out files up, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._abort_at_end)
            nursery.start_soon(self._keep_checkout)
            await self._keep()

    async def _abort_at_end(self) -> None:
        # A thread that waits for git can't be cancelled: git is ended, so that the daemon's end never waits for it.
        try:
            await trio.sleep_forever()
        finally:
            self._closing = True
            self._repo.abort()

    async def _keep(self) -> None:
        state = self._engine.state
        if state.identities or state.projects:
            self._wake.set()  # what the last run left undone
        while True:
            await self._wake.wait()
            await self._gather()
            self._wake = trio.Event()
            began = trio.current_time()
            await self.catch_up()
            if self._error is not None:
                await self._wait_to_retry()
                self._wake.set()
            else:
                now = trio.current_time()
                rested_at = max(self._rested_at, began) + (1 + DUTY) * (now - began)
                self._rested_at = min(rested_at, now + CREDIT_S + PAUSE_MAX_S)

    async def _gather(self) -> None:
        """Wait for what may share the next commit, and for the pause that the ones before it are worth."""
        began = trio.current_time()
        due = False
        while not due:
            before = self._changes
            await trio.sleep(GATHER_S)
            now = trio.current_time()
            burst = self._changes - before >= BURST
            enough = self._outrun or len(self._tail) * 2 >= TAIL_MAX or now - began >= GATHER_MAX_S
            due = self._hurry or ((enough or not burst) and self._rested_at - now <= CREDIT_S)
        self._hurry = False

    async def _keep_checkout(self) -> None:
        """The checked-out files are for people and may be late."""
        retry = 0.0
        while True:
            await self._moved.wait()
            with trio.move_on_after(CHECKOUT_LATE_S):
                while self._tail:
                    await self._arrival.wait()
            if not self._moved.is_set():
                continue  # `close` did it
            self._moved = trio.Event()
            began = trio.current_time()
            await self._checkout()
            pause = 1.0 + CHECKOUT_DUTY * (trio.current_time() - began)
            retry = 0.0 if self._checkout_error is None else min(max(retry * 2, RETRY_MIN_S), RETRY_MAX_S)
            if retry:
                self._moved.set()
            await trio.sleep(min(max(pause, retry), RETRY_MAX_S))

    async def _checkout(self) -> None:
        try:
            await self._run_sync(self._repo.checkout)
            self._checkout_error = None
        except RepoFailed as problem:
            if self._checkout_error is None and not self._closing:
                log.warning("the archive's checked-out files are late", extra={"why": str(problem)})
            self._checkout_error = str(problem)

    async def _wait_to_retry(self) -> None:
        self._retry_at = trio.current_time() + self._retry_s
        self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)
        await trio.sleep_until(self._retry_at)
        self._retry_at = None

    async def close(self) -> None:
        """A last try to catch up, for at most CLOSE_S; whoever runs `keep` ends it then."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._abort_later)
            if self._tail and self._error is None:
                await self.catch_up()
            if self._moved.is_set():
                self._moved = trio.Event()
                await self._checkout()
            nursery.cancel_scope.cancel()

    async def _abort_later(self) -> None:
        await trio.sleep(CLOSE_S)
        self._closing = True
        self._repo.abort()

    # -- catching up -----------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Archive everything that is durable now. A failure is kept for `status`, and retried by `keep`."""
        async with self._turn:
            await self._catch_up()

    async def _catch_up(self) -> None:
        began = time.perf_counter()
        try:
            for _ in range(3):
                try:
                    await self._step()
                    break
                except RepoMoved:
                    self._known = False
            else:
                raise RepoFailed("the branch keeps being moved by somebody else")
            await self._run_sync(self._repo.tidy)
        except RepoFailed as problem:
            self._failed(str(problem))
        else:
            if self._error is not None:
                log.info("the archive goes on")
            self._error, self._retry_s = None, RETRY_MIN_S
            self._degraded.pop("archive", None)
        self._counts["longest_ms"] = max(self._counts["longest_ms"], round((time.perf_counter() - began) * 1000, 1))

    def _failed(self, why: str) -> None:
        self._known = False
        if self._closing:
            return  # the next start goes on
        self._counts["failures"] += 1
        if self._error != why:
            log.warning("the archive is behind", extra={"why": why})
        self._error = why
        behind = str(len(self._tail)) if self._tail and not self._outrun else "some"
        self._degraded["archive"] = f"the Git archive is {behind} changes behind: {why}"

    async def _step(self) -> None:
        """One commit (more when the archive is made anew) of all that is new."""
        await self._run_sync(self._repo.prepare)
        tip = await self._run_sync(self._repo.tip)
        plan = await self._plan(tip)
        if plan.remake:
            head = await self._run_sync(self._repo.write, None, replaying.commits(plan.entries))
            tip = None if head is None else Tip(head, plan.upto)
            self._arrived(tip, plan.upto)
            plan = Plan(plan.upto)
        entries = [*plan.entries, *(entry for entry in self._tail if entry.seq > plan.upto)]
        if not entries and not plan.whole:
            self._arrived(tip, self._engine.durable_seq)
            return
        picture = self._picture(entries, whole=plan.whole)
        await self._engine.wait_durable(picture.seq)
        head = await self._run_sync(self._write, tip, picture, entries, plan.reason)
        self._counts["compared"] += plan.whole
        self._arrived(tip if head is None else Tip(head, picture.seq), picture.seq)

    async def _plan(self, tip: Tip | None) -> Plan:
        if self._known and tip is not None and self._tip is not None and tip.hexsha != self._tip.hexsha:
            return Plan(0, whole=True, reason="the branch was moved by somebody else")
        if self._known and not self._outrun and (tip is None) == (self._tip is None):
            return Plan(0)
        if tip is None and self._since == 0:
            return Plan(0)  # the registry is as young as this process: the tail has everything
        # The tail goes on from here: what it lost, or never had, is read from the log. What it has it knows better: the
        # log doesn't say what a renamed identity was called before. (A history that is made anew finds that itself.)
        self._outrun = False
        upto = self._engine.staged_seq
        if tip is not None and tip.seq is not None:
            upto = next((entry.seq - 1 for entry in self._tail if entry.seq > tip.seq), upto)
        await self._engine.wait_durable(upto)
        plan = await self._run_sync(replaying.plan, self._engine.log, tip, upto)
        if self._outrun:
            plan = Plan(upto, whole=True, reason="more changes than can be told one by one")
        return plan

    def _picture(self, entries: list[Entry], *, whole: bool) -> Picture:
        """The records now, with the seq that has to be durable before anyone may see them."""
        state, seq = self._engine.state, self._engine.staged_seq
        if not whole:
            return profiles.part(state, entries, seq)
        self._outrun = False
        return Picture(seq, list(state.identities.values()), dict(state.projects), frozenset(), whole=True)

    def _write(self, tip: Tip | None, picture: Picture, entries: list[Entry], reason: str | None) -> str | None:
        """In a worker thread: the new tip, None when nothing had to be changed."""
        if picture.whole:
            picture = profiles.everything(picture.identities, picture.projects, picture.seq)
            found = {} if tip is None else self._repo.files(tip.hexsha)
            differing = Difference(found, picture, self._repo)
            gone = [*differing.unexpected]
            commit = replaying.commit(entries, picture, reason, differing.files, gone, self._clock.wall())
        else:
            commit = replaying.commit(entries, picture)
        return self._repo.write(tip.hexsha if tip else None, [commit])

    def _arrived(self, tip: Tip | None, seq: int) -> None:
        if tip is not None and (self._tip is None or tip.hexsha != self._tip.hexsha):
            self._counts["commits"] += 1
            self._moved.set()
        self._tip, self._seq, self._known = tip, seq, True
        self._since = max(self._since, seq)
        tail = self._tail
        while tail and tail[0].seq <= seq:
            tail.popleft()
        self._pending_since = trio.current_time() if tail else None
        self._arrival.set()
        self._arrival = trio.Event()

    # -- answers ---------------------------------------------------------------------------------------------

    async def commits_of(self, identity: Identity, limit: int) -> list[PastCommit]:
        """Newest commits of an identity's profile, under all its names. Waits a moment for what is on its way.

        Raises RepoFailed.
        """
        with trio.move_on_after(SEEN_S):
            while self._error is None and any(entry.identity == identity.id for entry in self._tail):
                self._hurry = True
                await self._arrival.wait()
        paths = profiles.paths_of(self._engine.state, identity)
        return await self._run_sync(self._repo.log, paths, limit)

    async def commits(self, limit: int) -> list[PastCommit]:
        """Newest commits of all. Raises RepoFailed."""
        return await self._run_sync(self._repo.log, (), limit)

    def status(self) -> ArchiveStatusResult:
        """`archive.status`."""
        now = trio.current_time()
        return ArchiveStatusResult(
            path=self._path,
            head=None if self._tip is None else self._tip.hexsha,
            seq=self._engine.durable_seq if self._known and not self._tail and not self._outrun else self._seq,
            durable_seq=self._engine.durable_seq,
            behind=len(self._tail) if self._known and not self._outrun else None,
            lag_s=0.0 if self._pending_since is None else round(now - self._pending_since, 3),
            error=self._error,
            retry_in_s=None if self._retry_at is None else round(max(self._retry_at - now, 0.0), 1),
            checkout_error=self._checkout_error,
            commits=int(self._counts["commits"]),
        )

    async def verify(self) -> ArchiveVerifyResult:
        """Catch up, then compare the newest commit with the registry, and check Git's objects."""
        async with self._turn:
            await self._catch_up()
            state, seq = self._engine.state, self._engine.staged_seq
            late = {entry.identity for entry in self._tail}
            copies = (list(state.identities.values()), dict(state.projects), seq)
            await self._engine.wait_durable(seq)
            return await self._run_sync(verifying.compare, self._repo, copies, late, self._error)

    async def rebuild(self) -> ArchiveRebuildResult:
        """Set the archive aside and make it anew from the log, or as one commit of the present."""
        async with self._turn:
            await self._run_sync(self._repo.start_over)
            self._known, self._tip, self._seq = False, None, None
            self._moved.set()
            await self._catch_up()
            if self._error is not None:
                raise RepoFailed(self._error)
            made = await self._run_sync(self._repo.log, (), None)
        compared = any(commit.compared for commit in made)
        return ArchiveRebuildResult(
            head=made[0].hexsha if made else None,
            commits=len(made),
            set_aside=f"{self._path}.old",
            warnings=["The log no longer has everything: older history is not in the new archive."] if compared else [],
        )

    def statistics(self) -> dict[str, Any]:
        """Counters since the start, and the lag."""
        shown = self.status()
        return {
            **self._counts,
            "seq": shown.seq,
            "behind": shown.behind,
            "lag_s": shown.lag_s,
            "error": shown.error,
            "checkout_error": shown.checkout_error,
        }
