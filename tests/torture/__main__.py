"""Torture: random sequences of what agents, people and machines do, against real processes, judged by a small model.

    python -m tests.torture [--seconds 60] [--seed N [--steps N] [--drop 3-8,11]] [--shrink-seconds 120]

Without --seed it goes through one seed after another until the time is over. Exit code: 0 all is well, 1 a failure:
its seed, what was wrong and the shortest part of its plan that fails too.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.support.daemon import ROOT
from tests.torture.daemons import make_builds
from tests.torture.plan import Step
from tests.torture.running import Outcome, part, run, shrink

STEPS = 300


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, _interrupted)
    with tempfile.TemporaryDirectory(prefix="mbx-torture-") as folder:
        builds = make_builds(Path(options.sources), Path(folder))
        try:
            return _all(options, builds)
        except KeyboardInterrupt:
            print("interrupted; everything of it is ended", file=sys.stderr)
            return 130


def _all(options: argparse.Namespace, builds: tuple[Path, Path]) -> int:
    until = time.monotonic() + options.seconds
    seed = int.from_bytes(os.urandom(3)) if options.seed is None else options.seed
    while True:
        steps = part(seed, options.steps, options.drop)
        began = time.monotonic()
        outcome = run(seed, steps, builds, float("inf") if options.seed is not None else until)
        print(
            f"seed {seed}: {len(outcome.steps)} steps, {outcome.did}, {time.monotonic() - began:.1f} s: "
            f"{'FAILED' if outcome.failure else 'ok'}",
            flush=True,
        )
        if outcome.failure:
            _tell(seed, outcome, options, builds)
            return 1
        if options.seed is not None or time.monotonic() > until:
            return 0
        seed += 1


def _tell(seed: int, outcome: Outcome, options: argparse.Namespace, builds: tuple[Path, Path]) -> None:
    print(f"\n{outcome.failure}\n\nthe newest of what happened:\n{outcome.history}\n", flush=True)
    worst = outcome

    def fails(steps: Sequence[Step]) -> bool:
        nonlocal worst
        again = run(seed, steps, builds)
        if again.failure:
            worst = again
        return bool(again.failure)

    shortest = shrink(outcome.steps, fails, time.monotonic() + options.shrink_seconds)
    count = shortest[-1].at + 1
    kept = {step.at for step in shortest}
    dropped = _spans([at for at in range(count) if at not in kept])
    print(f"shortest part that failed ({len(shortest)} steps):")
    print("\n".join(str(step) for step in shortest))
    if worst is not outcome:
        print(f"\n{worst.failure}\n\n{worst.history}")
    drop = f" --drop {dropped}" if dropped else ""
    print(f"\nagain: python -m tests.torture --seed {seed} --steps {count}{drop}", flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on with new seeds")
    parser.add_argument("--seed", type=int, help="run this one alone, to its end")
    parser.add_argument("--steps", type=int, default=STEPS, help="length of each plan")
    parser.add_argument("--drop", type=_numbers, default=[], help="numbers of steps to leave out: 3-8,11")
    parser.add_argument("--shrink-seconds", type=float, default=120.0, help="how long to look for a shorter part")
    parser.add_argument("--sources", default=str(ROOT), help="a checkout whose daemon and shim are run instead")
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    """The numbers of `1-3,7`."""
    spans = [span.partition("-") for span in text.split(",") if span]
    return [number for first, _, last in spans for number in range(int(first), int(last or first) + 1)]


def _spans(numbers: Sequence[int]) -> str:
    """Rising numbers as `1-3,7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ",".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
