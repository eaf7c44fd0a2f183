"""The official conformance suite against the installed shim with a real daemon, for both eras.

`not_applicable.toml` lists what can't apply to this server, with the reason. All else must pass, warnings count as
failures, and what is listed must fail: the list stays true.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.node import Node
from tests.support.daemon import PATIENCE, Place
from tests.support.shim_process import environment, modern

pytestmark = [pytest.mark.external, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
SUITE = "@modelcontextprotocol/conformance"
LIMIT = 300.0
"""Seconds for one revision; it takes about a minute on a slow machine."""
BAD = {"FAILURE", "WARNING"}

Checks = dict[str, dict[str, set[str]]]
"""Scenario -> check -> the statuses it had."""


@contextmanager
def bridged(place: Place, shim: str) -> Iterator[str]:
    """The URL of a bridge; at its end neither it nor a server may have complained."""
    log = place.root / "bridge.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "bridge.py"), str(HERE / "aliases.toml"), shim],
            env=environment(place.state),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
            process.stdin.close()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            complaints = log.read_text()
            print(complaints)
    assert complaints == ""


def post(url: str, message: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(url, json.dumps(message).encode(), headers)  # noqa: S310 - our own bridge
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
        return json.loads(answer.read())


def checked(folder: Path) -> Checks:
    """What the suite wrote down."""
    found: Checks = {}
    for file in folder.glob("*/checks.json"):
        named = re.fullmatch(r"server-(.+?)-\d{4}-\d\d-\d\dT.*", file.parent.name)
        assert named is not None, file
        checks = found.setdefault(named[1], {})
        for check in json.loads(file.read_text()):
            checks.setdefault(check["id"], set()).add(check["status"])
    return found


def not_applicable(revision: str) -> tuple[set[str], set[tuple[str, str]]]:
    """The listed scenarios, and the listed checks as (scenario, check)."""
    scenarios: set[str] = set()
    checks: set[tuple[str, str]] = set()
    for group in tomllib.loads((HERE / "not_applicable.toml").read_text())["group"]:
        assert set(group) <= {"reason", "revisions", "scenarios", "checks"}
        assert group["reason"]
        if revision in group["revisions"]:
            scenarios |= set(group.get("scenarios", []))
            checks |= {(scenario, check) for scenario, names in group.get("checks", {}).items() for check in names}
    return scenarios, checks


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
def test_all_that_applies_passes(place: Place, shim: str, programs: Node, tmp_path: Path, revision: str) -> None:
    place.start()
    script = programs.package(SUITE) / "dist/index.js"
    env = environment(place.state)
    with bridged(place, shim) as url:
        arguments = {"action": "register", "name": "shop-backend", "role": "backend"}
        registered = post(url, modern("tools/call", {"name": "mbx_identity", "arguments": arguments}))
        assert registered["result"]["structuredContent"]["created"] is True
        options = ("--requirements", revision)
        ran = programs.run(script, "server", "--url", url, *options, "-o", str(tmp_path), env=env, limit=LIMIT)
    listed = programs.run(script, "list", "--server", *options, env=env, limit=LIMIT)
    required = listed.stdout.partition("Server scenarios")[2].partition("Client scenarios")[0]
    wanted = set(re.findall(r"^ +- (\S+)$", required, re.MULTILINE))
    wanted |= set(re.findall(r"^ +- (\S+) \[server\]$", listed.stdout, re.MULTILINE))
    found = checked(tmp_path)
    assert wanted, listed.stdout + listed.stderr
    assert set(found) == wanted, ran.stdout[-3000:] + ran.stderr[-3000:]

    failed = {
        (scenario, check) for scenario, checks in found.items() for check, statuses in checks.items() if statuses & BAD
    }
    scenarios, checks = not_applicable(revision)
    unexpected = {(scenario, check) for scenario, check in failed - checks if scenario not in scenarios}
    # Whatever is asked, no message may be malformed.
    unexpected |= {(scenario, check) for scenario, check in failed if check == "wire-schema-valid"}
    assert not unexpected, f"{sorted(unexpected)}\n{explained(tmp_path, unexpected)}"
    assert scenarios <= {scenario for scenario, _ in failed}, "these pass, or don't exist: take them off the list"
    assert checks <= failed, "these pass, or don't exist: take them off the list"


def explained(folder: Path, wanted: set[tuple[str, str]]) -> str:
    """The suite's own words."""
    checks = [check for file in folder.glob("*/checks.json") for check in json.loads(file.read_text())]
    names = {name for _, name in wanted}
    return "\n".join(json.dumps(check)[:2000] for check in checks if check["status"] in BAD and check["id"] in names)
