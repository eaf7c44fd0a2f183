"""A million messages cost what ten thousand do."""

from __future__ import annotations

import gc
from pathlib import Path
from random import Random

import pytest

from bench.mail import LARGE, SMALL, compare, fill, operations
from mbxd.mail.store import MailStore

MEMORY_MIB = 100


def resident_mib() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def test_plans_use_indexes(tmp_path: Path) -> None:
    """Every list is found through an index: no scan, no sort of a whole mailbox."""
    path = str(tmp_path / "mail.db")
    fill(path, 4_000, 50)
    store = MailStore.open(path)
    statements: list[str] = []
    with store._reader() as conn:
        conn.set_trace_callback(statements.append)
    for _ in range(3):
        for name, act in operations(store, Random(1)).items():
            if name != "send":
                act()
    store.inbox(1, everything=True)
    store.inbox(1, before=store.inbox(1).letters[-1].id)
    store.owed(1)
    store.waited_for(1)
    with store._reader() as conn:
        conn.set_trace_callback(None)
        selects = {one for one in statements if one.startswith("SELECT") and "words_" not in one}
        assert len(selects) > 10
        for one in selects:
            plan = [row[3] for row in conn.execute(f"EXPLAIN QUERY PLAN {one}")]
            assert not [step for step in plan if step.startswith("SCAN") and "VIRTUAL" not in step], (one, plan)
            if "acked_at IS NULL" in one:  # not by the primary key, which also has all that was ever acked
                assert any("deliveries_unacked" in step for step in plan), (one, plan)
            if "FROM deliveries d LEFT JOIN" not in one:  # the receipts of one page are few
                assert not [step for step in plan if "TEMP B-TREE" in step], (one, plan)
    store.close()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_million_messages(tmp_path: Path) -> None:
    found = compare(str(tmp_path), SMALL, LARGE, 40)
    ratios = {name: round(large / small, 2) for name, (small, large) in found.items()}
    assert {name: ratio for name, ratio in ratios.items() if ratio > 1.5} == {}, ratios
    gc.collect()
    before = resident_mib()
    store = MailStore.open(str(tmp_path / "large.db"))
    for act in operations(store, Random(1)).values():
        for _ in range(100):
            act()
    assert resident_mib() - before < MEMORY_MIB
    store.close()
