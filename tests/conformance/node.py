"""Programs for Node.js in the exact versions of package-lock.json, installed below pytest's cache directory."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MIN_NODE = (22, 19)
"""The inspector and the conformance suite need it."""
INSTALL_LIMIT = 300.0


class Node:
    """A node and the packages around it."""

    def __init__(self, folder: Path, program: str) -> None:
        self._folder = folder
        self._program = program

    def package(self, name: str) -> Path:
        return self._folder / "node_modules" / name

    def command(self, script: Path, *arguments: str) -> list[str]:
        """The command line that runs a script."""
        return [self._program, str(script), *arguments]

    def module(self, script: Path) -> Path:
        """A script of ours, put where its imports find the packages."""
        return Path(shutil.copy2(script, self._folder))

    def run(
        self, script: Path, *arguments: str, env: Mapping[str, str], limit: float
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(script, *arguments),
            env=dict(env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )


def installed(folder: Path) -> Node:
    """Install once for each lock file. Skips, saying why, where that can't be done."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    lock = (HERE / "package-lock.json").read_bytes()
    stamp, wanted = folder / "installed", hashlib.sha256(lock).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        _install(npm, folder)
        stamp.write_text(wanted)
    return Node(folder, _program(folder))


def _install(npm: str, folder: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy2(HERE / name, folder)
    settings = {
        "npm_config_cache": str(folder / "cache"),
        "npm_config_fetch_retry_mintimeout": "1000",  # milliseconds; a registry that can't be reached is known soon
        "npm_config_fetch_retry_maxtimeout": "2000",
        # Whoever runs the tests may have told npm, in their own home, which registry to use.
        "npm_config_userconfig": str(Path(pwd.getpwuid(os.getuid()).pw_dir) / ".npmrc"),
    }
    try:
        done = subprocess.run(
            # Not `npm ci`: it refuses when one optional package, for another system, can't be had.
            [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev", "--loglevel=error"],
            cwd=folder,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm could not install the packages within {INSTALL_LIMIT:.0f} s")
    finally:
        shutil.rmtree(folder / "cache", ignore_errors=True)
    if done.returncode != 0:
        pytest.skip(f"npm could not install the packages: {done.stderr[:500]}")


def _program(folder: Path) -> str:
    for program in (str(folder / "node_modules/.bin/node"), shutil.which("node")):
        if program is not None and os.access(program, os.X_OK):
            said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
            numbers = tuple(int(number) for number in said.strip().lstrip("v").split("."))
            if numbers >= MIN_NODE:
                return program
    pytest.skip(f"no node of version {'.'.join(map(str, MIN_NODE))} or later for this machine")
