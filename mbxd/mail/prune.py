"""Pruning: which old threads nobody needs, and their removal.

Owns that decision, in one statement for the real thing and the dry run. Never removes what is unacked, held,
or owed an answer, and keeps the ids of what it removes as tombstones, so that a late retry sends nothing twice.
"""

from __future__ import annotations

import sqlite3

from mbxd.mail.commands import TOMBSTONES_KEPT_S, Prune, Pruned

_THREADS = """
SELECT t.n, t.messages, t.bytes, t.newest < :older_than
  AND NOT EXISTS (SELECT 1 FROM messages m JOIN deliveries d ON d.message = m.n
                  WHERE m.thread = t.n AND d.acked_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM messages m JOIN held h ON h.message = m.n WHERE m.thread = t.n)
  AND NOT EXISTS (SELECT 1 FROM messages m JOIN requests q ON q.message = m.n WHERE m.thread = t.n)
FROM (SELECT thread AS n, count(*) AS messages, sum(size) AS bytes, max(sent_at) AS newest
      FROM messages WHERE thread > :after GROUP BY thread ORDER BY thread LIMIT :limit) t
"""
"""Threads behind :after in order, each with whether it may go."""

_ROWS = "SELECT n, id, sender, key, digest, sent_at, subject, who, body FROM messages WHERE thread = ?"


def prune(conn: sqlite3.Connection, cmd: Prune) -> Pruned:
    """Look at a run of threads, and remove those that may go unless it is a dry run."""
    looked = conn.execute(
        _THREADS, {"older_than": cmd.older_than, "after": cmd.after, "limit": max(1, cmd.limit)}
    ).fetchall()
    going = [row for row in looked if row[3]]
    if not cmd.dry_run:
        for thread, *_ in going:
            _remove(conn, thread, cmd.now)
        conn.execute("DELETE FROM pruned WHERE pruned_at < ?", (cmd.now - TOMBSTONES_KEPT_S,))
    more = len(looked) == max(1, cmd.limit)
    return Pruned(
        len(going), sum(row[1] for row in going), sum(row[2] for row in going), looked[-1][0] if more else None
    )


def _remove(conn: sqlite3.Connection, thread: int, now: float) -> None:
    (root,) = conn.execute("SELECT id FROM messages WHERE n = ?", (thread,)).fetchone()
    numbers = []
    for n, message, sender, key, digest, sent_at, subject, who, body in conn.execute(_ROWS, (thread,)):
        numbers.append((n,))
        conn.execute(
            "INSERT INTO pruned (id, thread, sender, key, digest, sent_at, pruned_at) VALUES (?,?,?,?,?,?,?)",
            (message, root, sender, key, digest, sent_at, now),
        )
        conn.execute(
            "INSERT INTO words (words, rowid, subject, body, who) VALUES ('delete', ?, ?, ?, ?)",
            (n, subject, body, who),
        )
    conn.executemany(
        "DELETE FROM deliveries WHERE message = ? AND recipient IN (SELECT identity FROM members WHERE thread = ?)",
        [(n, thread) for (n,) in numbers],
    )
    conn.executemany("DELETE FROM notices WHERE request = ?", numbers)
    conn.execute("DELETE FROM members WHERE thread = ?", (thread,))
    conn.executemany("DELETE FROM messages WHERE n = ?", numbers)
