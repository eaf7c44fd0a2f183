"""The shipped units: accepted by systemd without a word, and only with settings that take effect in a user unit."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "systemd"

NO_EFFECT = {"ProtectSystem", "ProtectHome", "PrivateTmp", "ProtectProc", "StateDirectory"}
FAILS = {"PrivateDevices", "ProtectClock", "CapabilityBoundingSet"}


def read(name: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # keys keep their case
    parser.read_string((UNITS / name).read_text())
    return parser


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_them_without_a_word(tmp_path: Path) -> None:
    folder = tmp_path / "units"
    folder.mkdir()
    program = shutil.which("true")
    for name in ("mbxd.service", "mbxd.socket"):
        lines = (UNITS / name).read_text().splitlines()
        text = "\n".join(f"ExecStart={program}" if line.startswith("ExecStart=") else line for line in lines)
        (folder / name).write_text(text + "\n")
    done = subprocess.run(
        [
            "systemd-analyze",
            "--user",
            "verify",
            "--man=no",
            *(str(path) for path in sorted(folder.iterdir())),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        timeout=60,
        check=False,
    )
    # Unknown keys only warn: silence is the test.
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_is_watched_and_told_when_to_give_up() -> None:
    service = read("mbxd.service")["Service"]
    assert service["Type"] == "notify"
    assert service["NotifyAccess"] == "main"
    assert int(service["WatchdogSec"]) > 0
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "75"
    assert service["UMask"] == "0077"


def test_the_socket_is_private() -> None:
    socket = read("mbxd.socket")["Socket"]
    assert socket["ListenStream"] == "%t/mbx/mbxd.sock"
    assert socket["SocketMode"] == "0600"
    assert socket["DirectoryMode"] == "0700"


def test_only_settings_that_take_effect_in_a_user_unit() -> None:
    keys = set(read("mbxd.service")["Service"])
    assert not keys & (NO_EFFECT | FAILS)
    assert not [key for key in keys if key.startswith("ProtectKernel")]
