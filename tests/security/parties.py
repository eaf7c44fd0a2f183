"""The programs that a place is trusted by, each run once: the daemon, the command line, the shim, the hook."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.support.daemon import PATIENCE, Place, environment
from tests.support.shim_process import ShimProcess, call, initialize


def daemon(place: Place, **env: Any) -> str:
    """The one line of a daemon that must not start."""
    process = place.start(wait=False, **env)
    said = process.wait_ready(must=False)
    assert process.process.wait(PATIENCE) == 1
    lines = process.log().splitlines()
    assert len(lines) == 1, lines
    assert said.startswith("error: ")
    return said.removeprefix("error: ")


def mbxctl(place: Place, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command of a person."""
    return subprocess.run(
        [sys.executable, "-m", "mbxctl", *args],
        env={**environment(place.state), **env},
        cwd=place.root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def command_line(place: Place, **env: str) -> str:
    """What `list`, `start` and `stop` refuse with: the same."""
    said = set()
    for args in (("list", "--all"), ("start",), ("stop",)):
        done = mbxctl(place, *args, "--json", **env)
        assert done.returncode not in {0, 69}, done
        said.add(json.loads(done.stdout)["error"]["message"])
    (one,) = said
    return str(one)


def doctor(place: Place, **env: str) -> str:
    """What doctor finds to be wrong."""
    done = mbxctl(place, "doctor", "--json", **env)
    assert done.returncode == 1, done
    checks = json.loads(done.stdout)["checks"]
    return "\n".join(f"{one['message']}: {one['fix']}" for one in checks if one["level"] == "fail")


def shim(place: Place, **env: str) -> str:
    """What an agent hears."""
    with ShimProcess({**environment(place.state), **env}, cwd=place.root) as process:
        process.ask(initialize())
        error: dict[str, Any] = process.ask(call())["result"]["structuredContent"]["error"]
        assert error["code"] == "DAEMON_DOWN", error
        return str(error["message"])


def hook(place: Place, **env: str) -> None:
    """The hook says nothing and lets the agent go on."""
    done = mbxctl(place, "hook", **env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


REFUSING: dict[str, Callable[..., str]] = {
    "daemon": daemon,
    "mbxctl": command_line,
    "doctor": doctor,
    "shim": shim,
}
