"""Figures of mail over the socket: durable sends, lists, search, and how soon a waiting reader is woken.

Owns how they are measured. The floor of a send is one bare write and fdatasync of as many bytes as its commit takes
in the mail file, plus a ping; that of a list is the bare SELECT of its rows, plus a ping.
"""

from __future__ import annotations

import contextlib
import os
import select
import sqlite3
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from bench import client, floors, load
from bench.fixture import Bench, Daemon, daemon
from bench.measure import in_turns, p50, timed
from bench.table import Row

US = 1e6
BODY = "The build of the main branch is green again; the flaky test was the clock. " * 3
FILLED = 2_000
PAGE = 30
_INBOX = """
SELECT m.id, m.thread, m.sender, m.kind, m.needs_reply, m.subject, m.size, m.refs, m.reply_to, m.sent_at
FROM deliveries d JOIN messages m ON m.n = d.message
WHERE d.recipient = ? AND d.acked_at IS NULL ORDER BY d.message LIMIT ?
"""
_SEARCH = """
SELECT m.id, m.thread, m.sender, m.kind, m.needs_reply, m.subject, m.size, m.refs, m.reply_to, m.sent_at, m.body
FROM words JOIN messages m ON m.n = words.rowid WHERE words MATCH ? ORDER BY words.rowid DESC LIMIT ?
"""


class Mailbox:
    """One session with a mailbox, on a connection of its own."""

    def __init__(self, running: Daemon, name: str) -> None:
        self.name = name
        self.conn = running.connect()
        self._numbers = count(1)
        self._says = client.Changes(name, name)
        self.conn.ask(client.numbered(self._says.register(name), 0))

    def line(self, method: str, params: dict[str, Any]) -> bytes:
        request_id = f"{self.name}-{next(self._numbers)}"
        return client.request(method, params, session=self.name, request_id=request_id)

    def sending(self, to: str) -> Callable[[], object]:
        """Something that sends a message."""
        return lambda: self.conn.ask(self.line("mail.send", letter(to)))


def letter(to: str) -> dict[str, Any]:
    return {"to": [to], "subject": "Build 7", "body": BODY}


def send_one(bench: Bench) -> Iterator[Row]:
    """Durable sends by one client."""
    with daemon(bench) as running, running.connect() as pinging:
        anna, _ = Mailbox(running, "mail-anna"), Mailbox(running, "mail-bert")
        send = anna.sending("mail-bert")
        for _ in range(50):
            send()
        with floors.disk(bench, bytes_of_one(running, send)) as sync:
            rounds = bench.rounds(60)
            lines = iter([anna.line("mail.send", letter("mail-bert")) for _ in range(rounds * 16)])
            ping = timed(lambda: pinging.call(client.PING))
            sends, syncs, pings = in_turns(rounds, 16, timed(lambda: anna.conn.call(next(lines))), sync, ping)
    yield Row("mail: send, 1 client p50", p50(sends) * US, (p50(syncs) + p50(pings)) * US)


def bytes_of_one(running: Daemon, send: Callable[[], object]) -> int:
    """Bytes that a send adds to the mail file's log, on the average of a few; it begins anew at 4 MB."""
    wal = f"{running.state}/mail.db-wal"
    before = os.path.getsize(wal)
    for _ in range(10):
        send()
    return max((os.path.getsize(wal) - before) // 10, 4096)


def send_many(bench: Bench) -> Iterator[Row]:
    """Sends a second by 64 clients, against one bare sync after another."""
    rates: list[float] = []
    alone: list[float] = []
    with daemon(bench) as running:
        anna, _ = Mailbox(running, "mail-anna"), Mailbox(running, "mail-bert")
        size = bytes_of_one(running, anna.sending("mail-bert"))
        for number in range(bench.rounds(10)):
            scripts = [sender(n, f"m{number}") for n in range(64)]
            rates.append(load.run(running.socket, scripts, bench.seconds(1.5)).rate)
            with floors.disk(bench, size) as sync:
                alone += [sync() for _ in range(300)]
    yield Row("mail: sends, 64 clients", p50(rates), len(alone) / sum(alone))


def sender(number: int, prefix: str) -> load.Script:
    """A client that sends and sends."""
    name = f"{prefix}-{number:03d}"
    says = client.Changes(name, name)
    line = client.request("mail.send", letter("mail-bert"), session=name, request_id=f"{name}-{client.NUMBER}")
    return load.Script(client.hello(), [says.register(name)], [line])


def lists(bench: Bench) -> Iterator[Row]:
    """A page of the inbox and of a search, each against the SELECT of its rows on a connection of the bench."""
    with daemon(bench) as running:
        anna, bert = Mailbox(running, "mail-anna"), Mailbox(running, "mail-bert")
        for _ in range(FILLED // 100):
            anna.conn.send(b"".join(anna.line("mail.send", letter("mail-bert")) for _ in range(100)))
            for _ in range(100):
                anna.conn.next_line()
        with contextlib.closing(sqlite3.connect(f"file:{running.state}/mail.db?mode=ro", uri=True)) as bare:
            number = bare.execute("SELECT recipient FROM deliveries LIMIT 1").fetchone()[0]
            inbox = bert.line("mail.inbox", {"limit": PAGE})
            search = bert.line("mail.search", {"query": "flaky", "limit": PAGE})
            match = f"({{subject body}} : (flaky)) AND who : (r{number})"
            found = in_turns(
                bench.rounds(40),
                20,
                timed(lambda: bert.conn.call(client.PING)),
                timed(lambda: bert.conn.call(inbox)),
                timed(lambda: bare.execute(_INBOX, (number, PAGE)).fetchall()),
                timed(lambda: bert.conn.call(search)),
                timed(lambda: bare.execute(_SEARCH, (match, PAGE)).fetchall()),
            )
    pings, inboxes, bare_inboxes, searches, bare_searches = (p50(samples) * US for samples in found)
    yield Row("mail: inbox of 30 p50", inboxes, bare_inboxes + pings)
    yield Row("mail: search, 30 found p50", searches, bare_searches + pings)


def wake(bench: Bench) -> Iterator[Row]:
    """From the sender's acknowledgement to the answer of the one who waits. Before it counts as nothing."""
    with daemon(bench) as running:
        anna, bert = Mailbox(running, "mail-anna"), Mailbox(running, "mail-bert")
        took = [_wake(anna, bert) for _ in range(bench.rounds(60) * 5)]
    yield Row("mail: acknowledged to the waiting reader's answer p50", p50(took) * US)


def _wake(anna: Mailbox, bert: Mailbox) -> float:
    bert.conn.send(bert.line("mail.inbox", {"wait_s": 30}))
    anna.conn.ask(anna.line("mail.whoami", {}))  # a turn of the daemon: the reader waits by now
    poll = select.poll()
    ends = {each.conn._socket.fileno(): each for each in (anna, bert)}
    for fd in ends:
        poll.register(fd, select.POLLIN)
    anna.conn.send(anna.line("mail.send", letter("mail-bert")))
    at: dict[str, float] = {}
    while len(at) < len(ends):
        for fd, _ in poll.poll(10_000):
            at[ends[fd].name] = time.perf_counter()
            poll.unregister(fd)
    anna.conn.next_line()
    ids = [one["id"] for one in client.decoded(bert.conn.next_line())["messages"]]
    bert.conn.ask(bert.line("mail.ack", {"ids": ids}))
    return max(0.0, at["mail-bert"] - at["mail-anna"])
