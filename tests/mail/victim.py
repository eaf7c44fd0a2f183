"""A process that sends mail until it is killed, or until its files may grow no further. Run by the crash tests.

Usage: victim.py PATH RUN. Writes `KEY ID` for every message acknowledged, one write a line.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from functools import partial
from typing import Any

from mbxd.mail import commands as c
from mbxd.mail.errors import MailError
from mbxd.mail.store import MailStore

IN_FLIGHT = 16


def command(key: str) -> c.Send:
    """The message of a key: what a retry would send again."""
    number = int(key.split("-")[1])
    body = f"{key} " * (1 + number % 50 * (1 + number % 7))
    held = (c.Role(1, "later"),) if number % 11 == 0 else ()
    return c.Send(
        *(1 + number % 3, (2, 3 + number % 5), key, body, 1e9 + number, number.to_bytes(10, "big"), number),
        needs_reply=number % 2 == 0,
        held=held,
        key=key,
    )


def main(path: str, run: str) -> None:
    store = MailStore.open(path)
    room = threading.Semaphore(IN_FLIGHT)
    acked: list[str] = []

    def done(key: str, result: Any, error: MailError | None) -> None:
        if error is not None:
            os.write(2, f"{type(error).__name__}\n".encode())
            os._exit(3)
        acked.append(result.id)
        os.write(1, f"{key} {result.id}\n".encode())
        room.release()

    for number in itertools.count():
        room.acquire()
        key = f"{run}-{number}"
        store.submit(command(key), partial(done, key))
        if number % 20 == 19:
            for identity in range(2, 8):
                store.submit(c.Ack(identity, tuple(acked[-40::2]), 1e9), ignore)
        if number % 200 == 199:
            store.submit(c.Prune(2e9, 1e9), ignore)


def ignore(_result: Any, _error: MailError | None) -> None:
    """Nobody waits for these."""


if __name__ == "__main__":
    main(*sys.argv[1:])
