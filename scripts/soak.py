"""Attack matryo for a long time, print a table of attempts and failures, and store its rows.

::

    python scripts/soak.py                           # every attack, full counts, rows to docs/results/soak.jsonl
    python scripts/soak.py --only kill_index exact   # some attacks
    python scripts/soak.py --scale 0.1               # a tenth of the attempts; rows are stored only if --rows is given
    python scripts/soak.py --bounded                 # the counts of the tests

The attacks are the modules of tests/hostile/attacks. Each runs in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from matryo.errors import MissingExtra
from matryo.results import append_rows, stamp

ROOT = Path(__file__).resolve().parent.parent
ATTACKS = ROOT / "tests" / "hostile" / "attacks"
KEPT = 20   # failures that are printed and stored, per attack


def main(argv: Sequence[str] | None = None) -> int:
    """Run the attacks; the exit status is 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="ATTACK", choices=names(), help=", ".join(names()))
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the number of attempts [1.0]")
    parser.add_argument("--bounded", action="store_true", help="the small numbers of attempts of the tests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes at the same time [2]")
    parser.add_argument("--rows", type=Path, help="append the rows here [docs/results/soak.jsonl at scale 1]")
    parser.add_argument("--attack", choices=names(), help=argparse.SUPPRESS)   # one attack, in this process
    args = parser.parse_args(argv)
    if args.attack:
        print(json.dumps(attack(args.attack, args)))
        return 0
    rows = args.rows or (None if args.bounded or args.scale != 1 else ROOT / "docs" / "results" / "soak.jsonl")
    given = [*(["--bounded"] if args.bounded else []), f"--scale={args.scale}", f"--seed={args.seed}"]
    failed = False
    print(line("attack", "promise", "attempts", "failures", "seconds"), flush=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        for name, figures in pool.map(lambda name: (name, in_a_process(name, given)), args.only or names()):
            if "skipped" in figures:
                print(line(name, figures["skipped"], "–", "–", "–"), flush=True)
                continue
            print(line(name, *(figures[key] for key in ("promise", "attempts", "failures", "seconds"))), flush=True)
            for failure in figures["said"]:
                print(f"    {failure}", flush=True)
            failed |= figures["failures"] > 0
            if rows is not None:
                append_rows(rows, [stamp("soak", name, figures, seed=args.seed)])
    return int(failed)


def names() -> list[str]:
    """The attacks, by the names of their modules."""
    return sorted(path.stem for path in ATTACKS.glob("*.py") if "\nPROMISE" in path.read_text(encoding="utf-8"))


def in_a_process(name: str, options: list[str]) -> dict[str, Any]:
    """The figures of one attack, run by a new process with one thread per library; a crash is a failure."""
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    command = [sys.executable, __file__, "--attack", name, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **one_thread}, check=False)
    if done.returncode == 0:
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures
    said = f"the attack itself ended with {done.returncode}"
    return {"promise": "–", "attempts": 0, "failures": 1, "said": [said], "seconds": 0.0}


def attack(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of one attack, run by this process; {"skipped": reason} where a package or a tool is missing."""
    sys.path.insert(0, str(ATTACKS.parent))
    warnings.simplefilter("ignore")   # attacks provoke them
    # In memory where possible: a kill needs no disk, and most of the time would be spent waiting for one.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    begin = time.monotonic()
    try:
        module = importlib.import_module(f"attacks.{name}")
        module.__dict__.get("require", lambda: None)()
        count = module.BOUNDED if args.bounded else max(1, round(module.SOAK * args.scale))
        with tempfile.TemporaryDirectory(dir=memory) as folder:
            outcome = module.run(count, args.seed, Path(folder))
    except (MissingExtra, ModuleNotFoundError, NotImplementedError) as error:
        return {"skipped": f"skipped: {error}"}
    return {"promise": module.PROMISE, "attempts": outcome.attempts, "failures": len(outcome.failures),
            "said": outcome.failures[:KEPT], "seconds": round(time.monotonic() - begin, 1)}  # fmt: skip


def line(name: str, promise: str, attempts: Any, failures: Any, seconds: Any) -> str:
    """One line of the table."""
    return f"{name:22} | {promise:100.100} | {attempts:>8} | {failures:>8} | {seconds:>7}"


if __name__ == "__main__":
    sys.exit(main())
