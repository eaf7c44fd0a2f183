from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 110.0


def bench(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--dir", str(place), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "client"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def documents_shape(document: dict[str, Any]) -> list[str]:
    assert set(document) == {"machine", "rows"}
    assert {"system", "cores", "load_average", "python", "load_client", "quick"} <= set(document["machine"])
    for row in document["rows"]:
        assert set(row) == {"name", "value", "unit", "floor", "ratio", "target", "holds"}
        assert row["value"] >= 0
        assert row["holds"] in {True, False, None}
        if row["ratio"] is not None:
            assert row["ratio"] == pytest.approx(row["value"] / row["floor"], rel=0.05, abs=0.01)
    return [row["name"] for row in document["rows"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("ping", ["ping p50"]),
        ("release, 1 client", ["durable release, 1 client p50"]),
        ("changes, 64", ["durable changes, 64 clients", "durable changes, 64 clients, against one sync each"]),
        ("kill", ["kill -9 to listed vacant p50", "kill -9 to listed vacant p99"]),
        ("shim: private", ["shim: private memory"]),
    ],
)
def test_a_quick_run_has_the_documented_shape_and_leaves_nothing(
    tmp_path_factory: pytest.TempPathFactory, pattern: str, names: list[str]
) -> None:
    place = tmp_path_factory.mktemp("b")
    done = bench(place, "--json", "--only", pattern)
    assert done.returncode == 0, done.stderr
    assert documents_shape(json.loads(done.stdout)) == names
    assert list(place.iterdir()) == []


def test_a_pattern_that_matches_nothing_is_a_usage_error_that_lists_the_names(tmp_path: Path) -> None:
    done = bench(tmp_path, "--only", "no such figure")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "ping p50" in done.stderr
