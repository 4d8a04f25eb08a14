"""The paper's tables of adaptive retrieval on real embeddings: D_s × D_r, the funnel, and the length of the shortlist.

The shortlists of all first stages come from one exact search at many dims; the stages that follow are those of
:mod:`matryo.retrieve`. Top-k, mAP@k and P@k are by labels, recall@10 is against exact search at full dim. MFLOPs count
as the paper does, each stage from the start, and as the plan is computed, each stage adding its columns.

    python benchmarks/retrieval_tables.py --database emb/train --queries emb/val
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

from matryo import EmbeddingSet, Plan
from matryo.reproduce.plans import LENGTHS, Shortlists, adaptive_plans, funnel_plans, most_kept
from matryo.results import append_rows, stamp


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
    most = most_kept([plan for plans in tables.values() for plan in plans], nesting.dims)
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
