"""What the asked-all-the-time command loads: nothing that it does not need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.mbxctl.conftest import Place
from tests.mbxctl.stub import TableDaemon, listing, row

Serve = Callable[..., TableDaemon]

HEAVY = {
    "click",
    "rich",
    "msgspec",
    "psutil",
    "subprocess",
    "pathlib",
    "datetime",
    "asyncio",
    "anyio",
    "trio",
    "logging",
}


def loaded(place: Place, *args: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "mbxctl", *args],
        capture_output=True,
        text=True,
        cwd=place.home,
        env=place.env,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    before = {line.rsplit("|", 1)[1].strip() for line in lines}
    bare = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "this"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return before - {line.rsplit("|", 1)[1].strip() for line in bare.stderr.splitlines() if "|" in line}


@pytest.mark.parametrize("args", [("list",), ("list", "--all"), ("list", "--json"), ("list", "--json", "--all")])
def test_a_plain_list_loads_no_parser_and_no_tables(place: Place, serve: Serve, args: tuple[str, ...]) -> None:
    serve(identity__list=listing(row()))
    modules = {name.split(".")[0] for name in loaded(place, *args)}
    assert "mbxctl" in modules
    assert not modules & HEAVY


def test_the_hook_loads_no_parser(place: Place, serve: Serve) -> None:
    serve(identity__list=listing())
    modules = {name.split(".")[0] for name in loaded(place, "hook")}
    assert "mbxctl" in modules
    assert not modules & HEAVY


def test_other_commands_load_no_schema_and_no_tables(place: Place, serve: Serve) -> None:
    serve(identity__show={"identity": row(), "epoch": 1, "aliases": [], "warnings": []})
    modules = {name.split(".")[0] for name in loaded(place, "show", "shop-backend")}
    assert "click" in modules
    assert not modules & {"rich", "msgspec", "psutil", "anyio", "trio"}
