"""Work on a Ray cluster and searches behind a router, measured on one machine.

    python benchmarks/cluster.py jobs
    python benchmarks/cluster.py scaling
    python benchmarks/cluster.py constants
    python benchmarks/cluster.py router

``jobs`` encodes and evaluates on a cluster of two machines (``ray.cluster_utils``), kills one of them midway, and
compares the results with those of one process. ``scaling`` runs both with one worker and with two. ``constants``
measures, on one core, what the estimate of docs/scale.md is made of. ``router`` measures the answers of a shard over
HTTP, and simulates a router of 64 shards with these times in virtual time. The first two need Ray: make ray.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from support import cluster_constants, cluster_jobs, router_simulation

from matryo.results import append_rows, stamp


def main() -> None:
    """Run one of the measurements, and store its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["jobs", "scaling", "constants", "router"])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of jobs and of scaling")
    parser.add_argument("--shards", type=int, default=64, help="of the simulated router")
    parser.add_argument("--requests", type=int, default=3000, help="to the simulated router, per case")
    parser.add_argument("--shared", action="store_true", help="others use the computer, too: store no times of jobs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/results/cluster.jsonl"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        found: dict[str, dict[str, Any]] = {
            "jobs": lambda: cluster_jobs.with_a_killed_machine(folder, args.rows, timed=not args.shared),
            "scaling": lambda: cluster_jobs.scaling(folder, args.rows),
            "constants": lambda: cluster_constants.measure(folder, args.seed),
            "router": lambda: router_simulation.measure(folder, args.shards, args.requests, args.seed),
        }[args.what]()
    print(json.dumps(found, indent=1))
    append_rows(args.out, [stamp("cluster", subject, figures, seed=args.seed) for subject, figures in found.items()])


if __name__ == "__main__":
    main()
