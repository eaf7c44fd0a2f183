"""A steady load leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.fixture import Bench
from bench.soak import READS, soak

CHANGES = {"identity.claim", "identity.release", "mail.send", "mail.ack"}


def test_a_short_load_leaves_nothing_behind(tmp_path: Path) -> None:
    report = soak(Bench(quick=True, place=str(tmp_path)), 2.0, warm=1.0, fill=10, identities=100, quiet=5, talking=10)
    assert set(report.took) == {*READS, *CHANGES}
    assert report.grew() == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_minutes_leave_nothing_behind(tmp_path: Path) -> None:
    report = soak(Bench(quick=False, place=str(tmp_path)), 600.0)
    assert report.grew() == []
    assert report.end is not None
    assert report.end.log_mib - report.start.log_mib < 32, "snapshots trim the log"
