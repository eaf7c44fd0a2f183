"""What the archive has to take up, from the log; and the commits that say it.

Owns reading changes back and cutting them into commits. Runs in worker threads; never touches the live state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from mbxd.core import events as ev
from mbxd.core import profiles
from mbxd.core.evolve import evolve
from mbxd.core.profiles import Entry, Picture
from mbxd.core.state import State
from mbxd.ports import NewCommit, Tip
from mbxd.store.errors import Damaged
from mbxd.store.log import Log

PLAN_MAX = 20_000
"""Changes that are taken up one by one after a stop; with more of them the whole is compared."""
COMMIT_CHANGES = 100
"""Changes that share a commit when the history is made anew."""


class Plan(NamedTuple):
    """How to catch up. entries: changes up to seq `upto`, oldest first.

    whole: compare everything, `reason` says why when it is not the usual course. remake: the entries are all there ever
    were, and there is no archive yet.
    """

    upto: int
    entries: list[Entry] = []  # noqa: RUF012  # never changed
    whole: bool = False
    reason: str | None = None
    remake: bool = False


def plan(log: Log, tip: Tip | None, upto: int) -> Plan:
    """From the newest commit to seq `upto`, which is durable."""
    if tip is not None and tip.seq is None:
        return Plan(upto, whole=True, reason="the newest commit was not made by the daemon")
    since = 0 if tip is None else tip.seq or 0
    if since > upto:
        return Plan(upto, whole=True, reason=f"the archive was ahead of the log ({since}, {upto})")
    try:
        entries = _changes(log, since, upto, None if tip is None else PLAN_MAX)
    except (Damaged, msgspec.DecodeError, OSError) as problem:
        return Plan(upto, whole=True, reason=f"the log can't be read back ({type(problem).__name__})")
    if entries is None:
        return Plan(upto, whole=True, reason=f"changes after {since} are not kept one by one")
    if tip is None:
        return Plan(upto, entries, remake=True)
    # The log doesn't say what a renamed identity was called before.
    return Plan(upto, entries, whole=any(isinstance(entry.event, ev.Renamed) for entry in entries))


def _changes(log: Log, since: int, upto: int, limit: int | None) -> list[Entry] | None:
    """Changes after `since`, oldest first; None when the log does not have them all, or there are too many."""
    entries: list[Entry] = []
    oldest = upto + 1
    for seq, record in log.history(upto):
        if seq <= since:
            break
        oldest = seq
        event = ev.decode(record)
        if profiles.is_change(event):
            entries.append(Entry(seq, event))
            if limit is not None and len(entries) > limit:
                return None
    entries.reverse()
    return entries if oldest == since + 1 else None


def commits(entries: list[Entry]) -> Iterator[NewCommit]:
    """The history again, from all changes there ever were."""
    state = State()
    some: list[Entry] = []
    touched: set[int] = set()
    for entry in entries:
        # Each change of the same identity gets a commit of its own, so that its history can be followed.
        if some and (len(some) == COMMIT_CHANGES or entry.identity in touched):
            yield commit(some, profiles.part(state, some, some[-1].seq))
            some = []
            touched.clear()
        some.append(_applied(state, entry))
        if entry.identity:
            touched.add(entry.identity)
    if some:
        yield commit(some, profiles.part(state, some, some[-1].seq))


def _applied(state: State, entry: Entry) -> Entry:
    before = state.identities[entry.identity].name if isinstance(entry.event, ev.Renamed) else None
    evolve(state, entry.event)
    return entry._replace(before=before)


def commit(
    entries: list[Entry],
    picture: Picture,
    reason: str | None = None,
    files: Iterable[tuple[str, bytes]] | None = None,
    gone: Iterable[str] | None = None,
    now: float = 0.0,
) -> NewCommit:
    """The commit of these changes. files, gone: what differs, when it was compared; `now` when no change has a time."""
    text = profiles.message(entries, picture, reason)
    trailers = f"Mbx-Seq: {picture.seq}"
    if reason is not None:
        trailers += f"\nMbx-Compared: {reason}"
    return NewCommit(
        f"{text}\n\n{trailers}",
        entries[-1].event.at if entries else now,
        profiles.files(picture) if files is None else files,
        picture.gone if gone is None else gone,
    )
