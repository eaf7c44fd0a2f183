"""`mbx-mcp`: the program. One thread, one poll loop over the client, the daemon and the host process.

Owns the command line, signals, the loop and every way out. Never interprets a message. Standard library only.

Ways out: a signal (at once, 128 + its number), the end of stdin (accepted calls are answered first, for at
most 1.5 s), a reader of stdout that is gone (at once, 0), the proven death of the host process (like the end
of stdin). All end in `os._exit`: there is nothing that the interpreter would have to tidy up.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from mbx_client import __version__
from mbx_mcp.bridge import READY
from mbx_mcp.eras import Eras, load_tools
from mbx_mcp.link import Link
from mbx_mcp.stdio import READ_SIZE, Claimed, Output
from mbx_wire.framing import MAX_LINE, LineReader, Oversized

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from mbx_client.ancestry import Host
    from mbx_mcp.introduction import Introduction

LAST_WORDS = 1.5
"""Seconds for accepted calls after the end of stdin."""
HOST_POLL = 2.0
"""Seconds between looks at the host where the kernel gives no pidfd."""
BACKLOG_MAX = 8 * 1024 * 1024
"""Bytes that may wait for the client or the daemon; beyond that nothing is read from the client."""

USAGE = """\
usage: mbx-mcp [--agent NAME] [--help] [--version]

An MCP server on stdin and stdout that gives an agent session a named mailbox identity.
Agent CLIs start it; add it to yours as a stdio server with the command mbx-mcp.

  --agent NAME  the identity to take when it is free (also: MBX_AGENT); a wish, never a seizure
  --version     print the version
  --help        print this text
"""


def main() -> NoReturn:
    """Run the shim until its client is gone; never returns."""
    agent = _arguments(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave_at_once)
    if os.isatty(0):
        sys.stderr.write("mbx-mcp speaks MCP on stdin; agent CLIs start it. See mbx-mcp --help.\n")
    claimed = Claimed()
    status = 0
    try:
        if claimed.ok:
            Shim(claimed.input, claimed.output, agent).run()
    except BrokenPipeError:
        pass  # the client is gone
    except BaseException:  # the outermost boundary: say what happened, then end without a hang
        import traceback

        traceback.print_exc()
        status = 1
    os._exit(status)


class Shim:
    """One client's shim. `run` returns when the client is gone."""

    def __init__(self, input_fd: int, output_fd: int, agent: str | None) -> None:
        self._input = input_fd
        self._reader = LineReader()
        self._output = Output(output_fd)
        self._eras = Eras(load_tools)
        self._agent = agent
        self._introduction: Introduction | None = None
        self._link = Link(self._introduce, self._projects)
        self._bridge = self._link.bridge
        self._host: Host | None = None
        self._look_at: float | None = None
        self._connected = False
        self._label: str | None = None
        self._leave_by: float | None = None

    def run(self) -> None:
        """The loop."""
        while True:
            events = self._wait()
            now = time.monotonic()
            for fd in events:
                if fd == self._input:
                    self._read(now)
                elif self._host is not None and fd == self._host.pidfd:
                    self._end(now)
                else:
                    self._link.ready(fd, now)
            self._look_at_host(now)
            self._bridge.tick(now)
            self._link.tick(now)
            self._pump(now)
            if self._leave_by is not None and self._done(now):
                return

    def _wait(self) -> list[int]:
        poll = select.poll()
        if self._leave_by is None:
            if self._output.size < BACKLOG_MAX and self._link.backlog < BACKLOG_MAX:
                poll.register(self._input, select.POLLIN)
            if self._host is not None and self._host.pidfd is not None:
                poll.register(self._host.pidfd, select.POLLIN)
        if self._output.size:
            poll.register(self._output.fd, select.POLLOUT)
        for fd, writing in self._link.interests():
            poll.register(fd, select.POLLIN | select.POLLOUT if writing else select.POLLIN)
        return [fd for fd, _event in poll.poll(self._timeout())]

    def _timeout(self) -> int | None:
        deadlines = [self._bridge.next_deadline(), self._link.next_deadline(), self._look_at, self._leave_by]
        known = [deadline for deadline in deadlines if deadline is not None]
        return max(0, int((min(known) - time.monotonic()) * 1000) + 1) if known else None

    def _read(self, now: float) -> None:
        try:
            data = os.read(self._input, READ_SIZE)
        except OSError:  # a terminal that hung up
            data = b""
        for line in self._reader.feed(data):
            self._take(line)
        if not data:
            last = self._reader.finish()
            if last is not None:
                self._take(last)
            self._end(now)
        for ticket in self._eras.cancelled:
            self._bridge.cancel(ticket)
        self._eras.cancelled.clear()
        for call in self._eras.calls:
            self._bridge.submit(call, now)
        self._eras.calls.clear()
        self._watch(now)

    def _take(self, line: bytes | Oversized) -> None:
        if isinstance(line, Oversized):
            self._eras.oversized(line.size, MAX_LINE)
        else:
            self._eras.receive(line)

    def _pump(self, now: float) -> None:
        """Carry everything one step on: answers to the client first, then calls to the daemon."""
        self._link.flush(now)
        if self._bridge.waiting:
            self._link.want(now)
        for outcome in self._bridge.outcomes:
            if outcome.encoded is not None:
                self._eras.answer_encoded(outcome.ticket, outcome.encoded)
            elif outcome.result is not None:
                self._eras.answer(outcome.ticket, outcome.result)
            else:
                self._eras.fail(outcome.ticket, outcome.code, outcome.message)
        self._bridge.outcomes.clear()
        self._tell()
        for line in self._eras.out:
            self._output.put(line)
        self._eras.out.clear()
        self._output.flush()
        if self._eras.answered and not self._output.size and self._leave_by is None:
            self._after_first_answer(now)

    def _tell(self) -> None:
        """What the client asked to be told of: progress, changed resources."""
        for ticket, seconds, total in self._bridge.progress:
            self._eras.progress(ticket, seconds, total)
        self._bridge.progress.clear()
        updates = self._bridge.updates
        if updates is not None:
            self._eras.updated(updates.due)
            updates.due.clear()

    def _watch(self, now: float) -> None:
        """Let the bridge know which resources are listened to."""
        if self._eras.subscribers is None:
            return
        if self._bridge.updates is None:
            from mbx_mcp.updates import Updates

            self._bridge.updates = Updates()
            if self._bridge.phase == READY:
                self._bridge.updates.connected()
        self._bridge.updates.watch(self._eras.subscribers.watched)
        self._bridge.tick(now)

    def _after_first_answer(self, now: float) -> None:
        if self._label != self._eras.label:
            self._label = self._eras.label
            self._bridge.introduce_again()
            self._link.flush(now)
        if self._connected:
            return
        self._connected = True
        self._link.want(now)
        from mbx_client import ancestry

        self._host = ancestry.find_host()
        if self._host is not None and self._host.pidfd is None:
            self._look_at = now

    def _look_at_host(self, now: float) -> None:
        if self._look_at is None or now < self._look_at:
            return
        self._look_at = now + HOST_POLL
        if self._host is not None and not self._host.alive():
            self._end(now)

    def _end(self, now: float) -> None:
        """Nobody asks any more: answer what was accepted, then go."""
        if self._leave_by is None:
            self._leave_by = now + LAST_WORDS
            self._look_at = None

    def _done(self, now: float) -> bool:
        late = self._leave_by is not None and now >= self._leave_by
        if not self._bridge.idle:
            if not late:
                return False
            self._bridge.give_up()
        self._eras.finish()
        self._pump(now)
        return late or not self._output.size

    def _introduce(self, handles: list[str]) -> dict[str, Any]:
        return self._introduced().params(self._eras.label, handles)

    def _projects(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._introduced().settle():
            self._bridge.introduce_again()
        if not any(name in arguments for name in ("project_key", "human_key")):
            return {}
        from mbx_mcp.introduction import named_projects

        return named_projects(arguments)

    def _introduced(self) -> Introduction:
        if self._introduction is None:
            from mbx_mcp.introduction import Introduction

            self._introduction = Introduction(self._agent)
        return self._introduction


def _arguments(arguments: list[str]) -> str | None:
    """The wished-for name, or None. Prints and exits for everything else."""
    agent = os.environ.get("MBX_AGENT") or None
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in {"--help", "-h"}:
            sys.stdout.write(USAGE)
            sys.exit(0)
        if word == "--version":
            sys.stdout.write(f"mbx-mcp {__version__}\n")
            sys.exit(0)
        if word == "--agent" and rest:
            agent = rest.pop(0)
        elif word.startswith("--agent="):
            agent = word.removeprefix("--agent=")
        else:
            what = "--agent needs a name" if word == "--agent" else f"unknown argument: {word}"
            sys.stderr.write(f"mbx-mcp: {what}\n{USAGE}")
            sys.exit(2)
    return agent or None


def _leave_at_once(number: int, _frame: object) -> NoReturn:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
