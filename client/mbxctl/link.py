"""The command line's way to the daemon: the one module that knows the client library.

Owns introducing this command (name `mbxctl`, working directory, project) and turning the library's errors into
`Failure`s. Never starts a daemon unless asked to. On the light path: standard library and light client only.
"""

from __future__ import annotations

import os

from mbx_client import __version__, blocking, paths, project
from mbx_wire.errors import Code
from mbxctl.failure import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Self

_STATUS_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 25.0


def installed_version() -> str:
    """The version of this installation, which a restart would run."""
    return __version__


def places() -> paths.Places:
    """Where the daemon of this environment is, or would be."""
    try:
        where = paths.resolve()
    except ValueError as bad:
        raise Failure(Code.PARAMETER_INVALID, str(bad), "Correct the variable that it names.") from None
    try:
        paths.check(where)
    except ValueError as bad:
        raise Failure(Code.NOT_ALLOWED, str(bad), "Then run it again; `mbxctl doctor` looks at all of it.") from None
    return where


class Link:
    """An introduced connection. `project` is {key, slug} of the working directory, or None where there is none."""

    def __init__(self, client: blocking.Client, here: dict[str, str] | None) -> None:
        self._client = client
        self.project = here

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def call(self, method: str, params: dict[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """The result of a method; every refusal and breakdown is a `Failure`. timeout: seconds, when it may be long."""
        try:
            result: dict[str, Any] = self._client.call(method, params, timeout=timeout or blocking.TIMEOUT)
        except blocking.ClientError as error:
            raise failure_of(error) from None
        return result

    def changes(self, *, everything: bool, timeout: float | None = None) -> Iterator[dict[str, Any]]:
        """First the answer to the subscription {subscribed, seq}, then each change.

        Ends when the stream does, or after `timeout` seconds without a change. Being cut off as too slow is a
        `Failure("BUSY")`.
        """
        yield self.call("events.subscribe", {} if everything else {"project": self._slug()})
        yield from self._notified("events.change", timeout)

    def arrivals(self, timeout: float | None = None) -> Iterator[dict[str, Any] | None]:
        """None once subscribed, then each message that reaches a mailbox of this host; ends as `changes` does."""
        self.call("events.subscribe", {})
        yield None
        yield from self._notified("events.mail", timeout)

    def _notified(self, method: str, timeout: float | None) -> Iterator[dict[str, Any]]:
        while True:
            try:
                message = self._client.next_notification(timeout)
            except blocking.ClientError as error:
                if error.code == Code.DAEMON_DOWN:
                    return
                raise failure_of(error) from None
            if message is None:
                return
            if message["method"] == "events.dropped":
                raise Failure(
                    Code.BUSY,
                    f"this reader was too slow: {message['params'].get('queued', 'too many')} changes were waiting",
                    "Run it again; `mbxctl log` has what was missed.",
                    retryable=True,
                )
            if message["method"] == method:
                yield message["params"]

    def _slug(self) -> str:
        # The slug that this directory would like may belong to another project: the daemon knows the real one.
        found = self.call("identity.list", {})["project"]
        return str(found["slug"]) if found else ""


def connect(*, start: bool = False, at: str = ".") -> Link:
    """Connect and introduce this command; with `start`, a daemon is started when none runs.

    at: the directory whose project the command is about.
    """
    where = places()
    here = _project(at)
    opener = blocking.connect_or_start if start else blocking.connect
    try:
        client = opener(where)
        try:
            client.hello(cwd=_cwd(), project=here)
        except BaseException:
            client.close()
            raise
    except blocking.ClientError as error:
        raise failure_of(error, where) from None
    except OSError as error:
        raise Failure(Code.DAEMON_DOWN, f"the daemon can't be started: {error}", "Run: mbxctl doctor") from None
    return Link(client, here)


def frozen(method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
    """One call of the mini-protocol (ping, status, stop), which every version answers without hello."""
    where = places()
    try:
        with blocking.connect(where, timeout=_STATUS_TIMEOUT_S) as client:
            result: dict[str, Any] = client.call(method, params, timeout=_STATUS_TIMEOUT_S)
    except blocking.ClientError as error:
        raise failure_of(error, where) from None
    return result


def start(where: paths.Places) -> None:
    """Start a daemon and wait until it is ready."""
    from mbx_client import launch

    try:
        launch.start(where, _START_TIMEOUT_S)
    except launch.StartFailed as bad:
        hint = f"Its log is {where.state}/mbxd.log; `mbxctl doctor` looks for the cause."
        raise Failure(Code.DAEMON_DOWN, f"the daemon does not start: {bad}", hint) from None


def failure_of(error: blocking.ClientError, where: paths.Places | None = None) -> Failure:
    """The library's error as a command's."""
    hint = error.hint
    if error.code == Code.DAEMON_DOWN and where is not None:
        from mbx_client import launch

        if launch.is_stopped(where):
            return Failure(error.code, "the daemon was stopped with `mbxctl stop`", "Run: mbxctl start", retryable=True)
    return Failure(error.code, error.message, hint, retryable=error.retryable, data=error.data)


def _project(directory: str) -> dict[str, str] | None:
    homes = project.home_directories(os.environ.get("HOME"), paths.account_home(os.getuid()))
    try:
        found = project.of_directory(directory, homes)
    except project.BadProjectFile as bad:
        raise Failure(Code.PARAMETER_INVALID, str(bad), "Mend that file.") from None
    return None if found is None else {"key": found.key, "slug": found.slug}


def _cwd() -> str | None:
    try:
        return project.printable(os.getcwd())
    except FileNotFoundError:
        return None
