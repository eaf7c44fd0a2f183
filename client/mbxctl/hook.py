"""`mbxctl hook`: one line for an agent that must not forget who it is, written by its CLI's hooks.

Owns what each event says. A hook stands in the way of its agent: it is over within a second, starts no daemon,
changes nothing, and whatever goes wrong it says nothing and exits with 0. On the light path: standard library
and light client only.

At the start, on resuming and after compaction it always speaks; at other events only when there is mail, or when
the identity is not what the agent believes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

from mbx_client import blocking, project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMIT_S = 1.0
_STDIN_S = 0.3
_STDIN_MAX = 1 << 20
_WORDS_MAX = 200
_UNCLEAR = "AMBIGUOUS_SESSION: "
"""How the daemon's warning begins when a process has several conversations; it goes on with the names they hold."""
_ALWAYS = frozenset({"sessionstart", "startup", "start", "resume", "clear", "compact", "precompact"})
"""Events after which an agent may have forgotten who it is, in letters alone: the CLIs spell them differently."""


def run_hook(args: list[str]) -> int:
    """Say the line, if there is one. Never raises and always returns 0."""
    try:
        # The one bound that also holds in a file system or a socket that does not answer.
        signal.signal(signal.SIGALRM, _too_late)
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        options = [arg for arg in args if arg != "--json"]
        told = _stdin()
        event = _option(options) or str(told.get("hook_event_name") or told.get("hookEventName") or "session-start")
        result = _look(told)
        line = sentence(result, always=_letters(event) in _ALWAYS)
        if "--json" in args:
            line = json.dumps({"event": event, "line": line, "you": result["you"]})
        if line:
            os.write(1, line.encode(errors="replace") + b"\n")
    except BaseException:  # noqa: S110 - whatever it is, the agent must go on
        pass
    return 0


def sentence(result: dict[str, Any], *, always: bool) -> str:
    """The line for a result of identity.list; empty when there is nothing to say."""
    from mbxctl.render import neutralise

    you, lost, wish = result["you"], result["lost"], result["pending"]
    if you is not None:
        if not always and not you["unread"]:
            return ""
        role = f" (role {you['role']})" if you["role"] else ""
        unread = f"{you['unread']} unread: call mbx_inbox" if you["unread"] else "nothing unread"
        return neutralise(f"mbx: you are {you['name']}{role}, {unread}.")
    if lost is not None:
        taken = f" and is now held by {lost['to']}" if lost["to"] else ""
        return neutralise(f"mbx: you are no longer {lost['name']}: it was lost at {lost['at']} ({lost['how']}){taken}.")
    if not always:
        return ""
    unclear = next((w for w in result["warnings"] if w.startswith(_UNCLEAR)), None)
    if unclear is not None:
        return neutralise(f"mbx: {unclear.removeprefix(_UNCLEAR)} Call mbx_whoami yourself: it says which one you are.")
    if wish is not None:
        return neutralise(f"mbx: you were {wish['name']}; call mbx_whoami, which takes it back when it is free.")
    return 'mbx: this session holds no mailbox; mbx_identity {"action":"list"} shows what is free.'


def _look(told: dict[str, Any]) -> dict[str, Any]:
    """identity.list as this session: the one look that binds nothing."""
    from mbx_client import paths

    where = paths.resolve()
    homes = project.home_directories(os.environ.get("HOME"), paths.account_home(os.getuid()))
    cwd = os.getcwd()
    here = project.of_directory(cwd, homes)
    ref = None if here is None else {"key": here.key, "slug": here.slug}
    session = told.get("session_id")
    claude = bool(os.environ.get("CLAUDE_PROJECT_DIR")) and isinstance(session, str) and 0 < len(session) <= _WORDS_MAX
    hints = {"resume": [f"claude-code:{session}"]} if claude else {}
    with blocking.connect(where, timeout=LIMIT_S) as client:
        client.hello(cwd=project.printable(cwd), project=ref, hints=hints, timeout=LIMIT_S)
        result: dict[str, Any] = client.call("identity.list", {}, timeout=LIMIT_S)
    return result


def _stdin() -> dict[str, Any]:
    """The hook's JSON, when the CLI passes one soon enough."""
    if sys.stdin is None or os.isatty(0):
        return {}
    data = b""
    until = time.monotonic() + _STDIN_S
    while len(data) < _STDIN_MAX and select.select([0], [], [], max(0.0, until - time.monotonic()))[0]:
        part = os.read(0, 65536)
        data += part
        if not part or data.rstrip().endswith(b"}"):
            try:
                value = json.loads(data)
            except ValueError:
                if part:
                    continue
                return {}
            return value if isinstance(value, dict) else {}
    return {}


def _option(args: list[str]) -> str | None:
    for number, arg in enumerate(args):
        if arg == "--event" and number + 1 < len(args):
            return args[number + 1]
        if arg.startswith("--event="):
            return arg.removeprefix("--event=")
    return None


def _letters(event: str) -> str:
    return "".join(char for char in event.lower() if char.isalpha())


def _too_late(_number: int, _frame: object) -> None:
    os._exit(0)
