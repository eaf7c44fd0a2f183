"""The daemon's own log is bounded and one line a record, whatever is said and however often."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from mbxd import logs
from tests.support.daemon import SOURCES

CAPPED = """
import os, sys
from mbxd import logs
logs.CAP = 1000
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.dup2(fd, 2)
for number in range(500):
    os.write(2, b"x" * 99 + b"\\n")
    logs.cap(sys.argv[1])
"""


def record(text: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("mbxd", logging.ERROR, __file__, 1, text, None, None)
    vars(made).update(extra)
    return made


def test_a_long_log_is_set_aside_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "mbxd.log"
    env = {"PATH": os.defpath, "PYTHONPATH": SOURCES}
    subprocess.run([sys.executable, "-c", CAPPED, str(path)], env=env, check=True, timeout=30)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mbxd.log", "mbxd.log.1"]
    assert path.stat().st_size < 1100
    assert (tmp_path / "mbxd.log.1").stat().st_size < 1100


def test_somebody_elses_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mbxd.log"
    path.write_bytes(b"x" * (logs.CAP + 1))
    logs.cap(str(path))  # stderr leads elsewhere
    logs.cap(str(tmp_path / "missing"))
    assert [p.name for p in tmp_path.iterdir()] == ["mbxd.log"]


def test_repeats_are_counted_not_written() -> None:
    few = logs.FewRepeats()
    assert sum(few.filter(record("again")) for _ in range(1000)) == logs.REPEATS_SHOWN
    other = record("another")
    assert few.filter(other)
    assert vars(other)["repeats_before"] == 1000 - logs.REPEATS_SHOWN


@given(st.text(), st.text())
def test_a_record_is_one_printable_line(text: str, value: str) -> None:
    line = logs.Logfmt().format(record(text.replace("%", ""), why=value))
    assert line.isascii()
    assert line.isprintable()
