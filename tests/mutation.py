"""Mutation testing: a seeded sample of mutants of each module, run against the tests of that part; a score for each.

`python -m tests.mutation --help`. Needs mutmut (docs/testing.md says which), which makes the mutants, in ./mutants,
and finds the tests that reach each one. Owns the choice alone: mutants that only change the wording of a text for
people are left out, and of the three that mutmut makes of every other text one is kept.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

TREE = Path("mutants")
SMALLEST = "mbxd.core.context.*"
NOTICED = {1, 3, 24, 36, -24, 152, 255}
"""Exit codes that mutmut keeps: tests failed, or ran out of time."""
UNTESTED = {5, 33}
"""No test reaches it."""


def difference(one: object, two: object) -> tuple[object, object] | None:
    """What stands in `two` in the place of something in `one`: the innermost nodes around the first difference."""
    if isinstance(one, ast.AST) and isinstance(two, ast.AST):
        if type(one) is not type(two):
            return one, two
        for name in one._fields:
            left, right = getattr(one, name, None), getattr(two, name, None)
            if left != right and not isinstance(left, (ast.AST, list)):
                return one, two
            if found := difference(left, right):
                return found
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return next((found for a, b in zip(one, two, strict=True) if (found := difference(a, b))), None)
    elif one != two:
        return one, two
    return None


def is_wording(original: object, mutant: object) -> bool:
    """Whether the mutant says no more than that a text for people is another one."""
    if isinstance(original, ast.JoinedStr):
        return True
    if not isinstance(original, ast.Constant) or not isinstance(original.value, str):
        return False
    changed = mutant.value if isinstance(mutant, ast.Constant) else None
    return " " in original.value or not (isinstance(changed, str) and changed.startswith("XX"))


def module_of(path: Path) -> str:
    """`mbxd.core.times` for its file in the tree."""
    return ".".join(path.relative_to(TREE).with_suffix("").parts)


def names_in(path: Path) -> Iterator[str]:
    """Names of a file's mutants that are more than wording."""
    functions = {
        node.name: node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for name, mutant in functions.items():
        base, mark, number = name.rpartition("__mutmut_")
        if not mark or number == "orig":
            continue
        original = functions[f"{base}__mutmut_orig"]
        found = difference(original.body, mutant.body) or difference(original.args, mutant.args)
        if found is None or not is_wording(*found):
            yield f"{module_of(path)}.{name}"


def files(patterns: list[str]) -> list[Path]:
    """The mutated files of these modules."""
    return [path for path in sorted(TREE.rglob("*.py")) if any(fnmatch(module_of(path), wanted) for wanted in patterns)]


def mutmut(names: list[str]) -> None:
    """Run these mutants, one at a time."""
    subprocess.run([sys.executable, "-m", "mutmut", "run", "--max-children", "1", *names], check=True)


def report(chosen: dict[Path, list[str]]) -> None:
    """One line for each module, then the mutants that nothing killed."""
    left: list[str] = []
    for path, names in chosen.items():
        codes: dict[str, int | None] = json.loads(Path(f"{path}.meta").read_text())["exit_code_by_key"]
        seen = Counter(
            "killed" if codes[name] in NOTICED else "untested" if codes[name] in UNTESTED else "survived"
            for name in names
            if codes[name] is not None
        )
        print(f"{module_of(path)}\t{seen['killed']} of {seen.total()} killed\t{seen['untested']} that no test reaches")
        left += [name for name in names if codes[name] not in {None, *NOTICED}]
    print("\n".join(left))
    print("mutmut show NAME prints one of these", file=sys.stderr)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As a plugin of the runs that mutmut starts: the quickest tests first, since one failure is enough."""
    stats = Path("mutmut-stats.json")
    if stats.exists():
        took: dict[str, float] = json.loads(stats.read_text())["duration_by_test"]
        items.sort(key=lambda item: took.get(item.nodeid, 0.0))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", default=["mbxd.*"], help="patterns of module names, as mbxd.store.*")
    parser.add_argument("--most", type=int, default=36, help="mutants of one module at most (default 36)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, another sample (default 1)")
    wanted = parser.parse_args()
    if not TREE.exists():
        mutmut([SMALLEST])  # makes the tree, and learns which tests reach what
    chosen: dict[Path, list[str]] = {}
    for path in files(wanted.modules):
        names = sorted(names_in(path))
        draw = random.Random(f"{wanted.seed} {module_of(path)}")
        if names:
            chosen[path] = draw.sample(names, min(wanted.most, len(names)))
    mutmut([name for names in chosen.values() for name in names])
    report(chosen)


if __name__ == "__main__":
    main()
