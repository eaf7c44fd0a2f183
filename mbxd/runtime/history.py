"""The registry's history for people: who claimed, lost, released what, when and why.

Owns the reading of the kept segments, newest first. Runs in a worker thread; never touches the live state.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mbx_wire.admin import LogEntry, LogResult
from mbxd.core import events as ev
from mbxd.core.times import iso
from mbxd.runtime.fanout import words
from mbxd.store.log import Log

LIMIT_MAX = 1000


def read(log: Log, upto: int, names: Mapping[int, str], wanted: int | None, limit: int) -> LogResult:
    """The newest `limit` entries up to seq `upto`, of one identity when `wanted` is given."""
    entries: list[LogEntry] = []
    for seq, record in log.history(upto):
        try:
            event = ev.decode(record)
        except msgspec.DecodeError:
            continue  # a snapshot stands in for what an older build wrote and this one can't read
        said = words(event)
        if said is None or (wanted is not None and said[1] != wanted):
            continue
        if len(entries) == limit:
            return LogResult(entries=entries, truncated=True)
        entries.append(_entry(seq, event, said, names))
    complete = not entries or entries[-1].seq <= 2 or any(e.what == "registered" for e in entries[-1:])
    return LogResult(entries=entries, truncated=not complete)


def _entry(
    seq: int, event: ev.Event, said: tuple[str, int, str | None, str | None], names: Mapping[int, str]
) -> LogEntry:
    what, number, who, reason = said
    granted = event if isinstance(event, ev.Granted) else None
    return LogEntry(
        seq=seq,
        at=iso(getattr(event, "at", 0.0)),
        what=what,
        name=names.get(number, f"#{number}"),
        epoch=getattr(event, "epoch", None),
        who=who,
        pid=None if granted is None else granted.session.host.pid,
        reason=reason,
    )
