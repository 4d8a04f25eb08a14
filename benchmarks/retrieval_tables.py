"""The paper's tables of adaptive retrieval on real embeddings: D_s × D_r, the funnel, and the length of the shortlist.

The shortlists of all first stages come from one exact search at many dims; the stages that follow are those of
:mod:`matryo.retrieve`. Top-k, mAP@k and P@k are by labels, recall@10 is against exact search at full dim. MFLOPs count
as the paper does, each stage from the start, and as the plan is computed, each stage adding its columns.

    python benchmarks/retrieval_tables.py --database emb/train --queries emb/val
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from matryo import EmbeddingSet, Nesting, Plan
from matryo.evaluation.knn.search import search
from matryo.metrics import hit_rate, mean_average_precision, precision, relevance
from matryo.results import append_rows, stamp
from matryo.retrieve import Blocks
from matryo.retrieve.engines.compiled import best_engine
from matryo.retrieve.engines.numpy.scan import unscored
from matryo.retrieve.engines.request import Request

Rows = np.ndarray[Any, np.dtype[np.int64]]
Vectors = np.ndarray[Any, np.dtype[np.float32]]

DEPTHS = (10, 25, 50, 100)
KEEP = 200
LENGTHS = (100, 200, 400, 800, 1600, 2048)   # of shortlists
CASCADES = ((200, 100, 50, 25, 10), (400, 200, 50, 25, 10), (800, 400, 200, 50, 10))   # of funnels
BATCH = 200   # queries ranked again at a time


class Shortlists:
    """Shortlists of first stages: the nearest at each dim, found once for all plans."""

    def __init__(self, database: EmbeddingSet, queries: EmbeddingSet, most: dict[int, int]) -> None:
        self.blocks = Blocks.of(database.vectors, database.nesting)
        self.queries = np.asarray(queries.vectors, np.float32)
        self.known, self.asked = np.asarray(database.labels), np.asarray(queries.labels)
        self.totals = np.bincount(self.known, minlength=int(self.asked.max()) + 1)[self.asked]
        self.rows: dict[int, Rows] = {}
        for length in sorted(set(most.values())):
            dims = [dim for dim in database.nesting.dims if most[dim] == length]
            self.rows |= search(database.vectors, self.queries, dims, min(length, database.count), progress=True)
        self.full = np.sort(self.rows[database.nesting.dim][:, :10], axis=1)

    def run(self, plan: Plan) -> Rows:
        """The hits of a plan, [queries, k]."""
        first, *later = plan.stages
        held = self.rows[first.dim][:, : first.keep]
        if not later:
            return held
        rerank, parts = best_engine().rerank, []
        for start in range(0, len(self.queries), BATCH):
            some = slice(start, start + BATCH)
            request, done = Request(self.blocks, self.queries[some]), 0
            found = unscored(held[some])
            for stage in later:
                found = rerank(request, found, stage, done)
                done = stage.dim
            parts.append(found.rows)
        return np.concatenate(parts)

    def graded(self, plan: Plan) -> dict[str, Any]:
        """Quality and cost of a plan."""
        found = self.run(plan)
        relevant = relevance(self.known[found], self.asked)
        depths = [k for k in DEPTHS if k <= found.shape[1]]
        hits = (found[:, :10, None] == self.full[:, None, :]).any(1)
        count = self.blocks.count
        return {
            "plan": plan.to_dict(),
            "mflops": plan.mflops(count, reuse=False), "mflops_computed": plan.mflops(count),
            **{f"top{k}": hit_rate(relevant, k) for k in (1, 5, 10)},
            **{f"map@{k}": mean_average_precision(relevant, self.totals, k) for k in depths},
            **{f"p@{k}": precision(relevant, k) for k in depths},
            "recall@10": float(hits.mean()),
        }  # fmt: skip


def adaptive_plans(nesting: Nesting, keep: int = KEEP) -> list[Plan]:
    """Every pair of a shorter and a longer dim."""
    k = min(100, keep)
    return [Plan.adaptive(low, high, keep=keep, k=k) for low in nesting.dims for high in nesting.dims if low < high]


def funnel_plans(nesting: Nesting, cascades: Sequence[Sequence[int]] = CASCADES) -> list[Plan]:
    """The paper's three cascades from each dim that leaves room for their stages."""
    plans = []
    for low in nesting.dims:
        for keeps in cascades:
            dims = [low * 2**stage for stage in range(len(keeps))]
            if {*dims} <= {*nesting.dims}:
                last = [] if dims[-1] == nesting.dim else [(nesting.dim, keeps[-1])]
                plans.append(Plan.of([*zip(dims, keeps, strict=True), *last]))
    return plans


def main() -> None:
    """Measure, print, store the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=EmbeddingSet.open, required=True, metavar="EMB")
    parser.add_argument("--queries", type=EmbeddingSet.open, required=True, metavar="EMB")
    parser.add_argument("--short", type=int, default=16, help="the first dim whose shortlist is made longer")
    parser.add_argument("--out", type=Path, default=Path("docs/results/retrieval-tables.jsonl"))
    args = parser.parse_args()
    database, queries = args.database, args.queries
    nesting = database.nesting
    tables = {
        "single": [Plan.single(dim, k=100) for dim in nesting.dims],
        "adaptive": adaptive_plans(nesting),
        "funnel": funnel_plans(nesting),
        "shortlist": [Plan.adaptive(args.short, nesting.dim, keep=keep, k=100) for keep in LENGTHS],
    }
    first = [plan.stages[0] for plans in tables.values() for plan in plans]
    most = {dim: max(stage.keep for stage in first if stage.dim == dim) for dim in nesting.dims}
    shortlists = Shortlists(database, queries, most)
    bar = tqdm(total=sum(map(len, tables.values())), desc="plans", unit="plan")
    rows = []
    for table, plans in tables.items():
        entries = []
        for plan in plans:
            entries.append(shortlists.graded(plan))
            bar.update()
        about = {"table": table, "database": database.count, "queries": queries.count, "dims": nesting.dims}
        title = f"{queries.manifest.title} {queries.manifest.dataset} {queries.manifest.split}".strip()
        rows.append(stamp("retrieval-table", title, about | {"entries": entries}, seed=None))
    bar.close()
    for row in rows:
        print(row.figures["table"])
        for entry in row.figures["entries"]:
            stages = " → ".join(f"{stage['dim']}:{stage['keep']}" for stage in entry["plan"]["stages"])
            print(f"  {stages:48} {entry['mflops']:8.2f} MFLOPs  top-1 {100 * entry['top1']:.2f}  "
                  f"mAP@10 {100 * entry['map@10']:.2f}  recall@10 {100 * entry['recall@10']:.2f}")  # fmt: skip
    append_rows(args.out, rows)


if __name__ == "__main__":
    main()
