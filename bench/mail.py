"""Figures of the mail store by itself: latency and rate of durable sends, and what a million messages cost.

Owns how they are measured. The floor of a send is one bare write and fdatasync of as many bytes as its commit takes.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench import floors
from bench.fixture import Bench, directory
from bench.measure import in_turns, p50, timed
from bench.table import Row
from mbxd.mail import commands as c
from mbxd.mail.errors import MailError
from mbxd.mail.store import MailStore

US = 1e6
WRITERS = 64
IDENTITIES = 100
SMALL = (10_000, 50)
LARGE = (1_000_000, 5_000)
"""Messages, threads: 200 messages a thread in both."""
UNREAD = 20
KINDS = ("inbox", "sent", "thread", "search, common word", "search, rare word", "unread", "send")

_WORDS = [f"word{number}" for number in range(5_000)]
_numbers = itertools.count(1)


def letter(draw: random.Random, sender: int = 1, to: int = 2, reply_to: str = "", last: str = "common") -> c.Send:
    """A short message of fifteen words."""
    body = " ".join([*draw.choices(_WORDS, k=14), last])
    number = next(_numbers)
    return c.Send(sender, (to,), f"about {number}", body, 1.7e9 + number, draw.randbytes(10), number, reply_to=reply_to)


def send_one(bench: Bench) -> Iterator[Row]:
    """Durable sends one after another, against bare syncs of as many bytes, in turns."""
    with directory(bench) as state:
        store = MailStore.open(f"{state}/mail.db")
        draw = random.Random(1)
        send = timed(lambda: store.call(letter(draw)))
        for _ in range(100):
            send()
        with floors.disk(bench, commit_bytes(store, f"{state}/mail.db-wal", draw)) as sync:
            sends, syncs = in_turns(bench.rounds(60), 16, send, sync)
        store.close()
    yield Row("mail store: send, 1 writer p50", p50(sends) * US, p50(syncs) * US)


def commit_bytes(store: MailStore, wal: str, draw: random.Random) -> int:
    """Bytes that the commit of one message adds to the WAL, on the average of ten."""
    store._in_writer(lambda conn: conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
    for _ in range(10):
        store.call(letter(draw))
    return os.path.getsize(wal) // 10


def send_many(bench: Bench) -> Iterator[Row]:
    """Sends a second with 64 in flight, against one bare sync after another."""
    with directory(bench) as state:
        store = MailStore.open(f"{state}/mail.db")
        draw = random.Random(2)
        rates, alone = [], []
        for _ in range(bench.rounds(10)):
            rates.append(rate(store, draw, 2_000))
            with floors.disk(bench, 1_000) as sync:
                alone += [sync() for _ in range(200)]
        store.close()
    yield Row("mail store: sends, 64 writers", p50(rates), 1 / p50(alone))


def rate(store: MailStore, draw: random.Random, count: int) -> float:
    """Durable sends a second while 64 wait for theirs at any time."""
    room = threading.Semaphore(WRITERS)
    letters = [letter(draw, 1 + number % 50, 51 + number % 50) for number in range(count)]
    began = time.perf_counter()
    for one in letters:
        room.acquire()
        store.submit(one, lambda _result, error: _released(room, error))
    for _ in range(WRITERS):
        room.acquire()
    return count / (time.perf_counter() - began)


def _released(room: threading.Semaphore, error: MailError | None) -> None:
    assert error is None, error
    room.release()


def growth_of_mail(bench: Bench) -> Iterator[Row]:
    """Each operation at many messages, against the same at 10,000."""
    large = (100_000, 500) if bench.quick else LARGE
    with directory(bench) as state:
        for name, (small, big) in compare(state, SMALL, large, bench.rounds(40)).items():
            yield Row(f"mail store: {name} at {large[0]:,}", big * US, small * US)


def compare(state: str, small: tuple[int, int], large: tuple[int, int], rounds: int) -> dict[str, tuple[float, float]]:
    """Operation -> its median seconds in a small and in a large store, taken in turns."""
    stores, acts = [], []
    for name, (count, threads) in (("small", small), ("large", large)):
        path = f"{state}/{name}.db"
        fill(path, count, threads)
        store = MailStore.open(path)
        stores.append(store)
        acts.append(operations(store, random.Random(3)))
    try:
        return {
            name: (p50(samples[0]), p50(samples[1]))
            for name in acts[0]
            for samples in [in_turns(rounds, 5, timed(acts[0][name]), timed(acts[1][name]))]
        }
    finally:
        for store in stores:
            store.close()


def operations(store: MailStore, draw: random.Random) -> dict[str, Callable[[], Any]]:
    """What an agent does, each for identities and threads in turn."""
    busy = [one for one in range(1, IDENTITIES) if store.unread(one) >= UNREAD]
    who = itertools.cycle(busy)
    roots = itertools.cycle([one.thread for number in busy for one in store.inbox(number, limit=5).letters])
    return {
        "inbox": lambda: store.inbox(next(who)),
        "sent": lambda: store.sent(next(who)),
        "thread": lambda: store.thread(next(roots), None),
        "search, common word": lambda: store.search(next(who), "common"),
        "search, rare word": lambda: store.search(1, "needle"),
        "unread": lambda: store.unread(next(who)),
        "send": lambda: store.call(letter(draw, next(who), next(who))),
    }


def fill(path: str, count: int, threads: int) -> None:
    """A store of conversations between two, each identity with 20 unread messages, the rest acked.

    In the first one, between 1 and 2, every tenth message has the word `needle`.
    """
    draw, room = random.Random(4), threading.Semaphore(512)
    pairs = [(1 + place * 2 % (IDENTITIES - 1), 1 + (place * 2 + 1) % (IDENTITIES - 1)) for place in range(threads)]
    store = MailStore.open(path, sync=False)
    roots = [store.call(letter(draw, *pair)).id for pair in pairs]
    for number in range(count - threads):
        place = number % threads
        sender, to = pairs[place] if number // threads % 2 else pairs[place][::-1]
        last = "needle" if number % (threads * 10) == 0 else "common"
        room.acquire()
        store.submit(letter(draw, sender, to, roots[place], last), lambda _result, error: _released(room, error))
    for _ in range(512):
        room.acquire()
    for identity in range(1, IDENTITIES):
        while (surplus := store.unread(identity) - UNREAD) > 0:
            ids = [one.id for one in store.inbox(identity, limit=200).letters][:surplus]
            store.call(c.Ack(identity, tuple(ids), 2e9))
    store.close()
