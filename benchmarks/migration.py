"""Migration from one model to another: recall of mapped vectors against a full re-encode, measured on real texts.

``encode`` writes the vectors of WordNet glosses by wordllama (static, 256 dims) and MiniLM (a transformer, 384 dims),
both frozen. ``run`` fits a migration in each direction, to 500, 2,000 and 4,000 of them, and measures queries that no
map saw in an index of the other glosses: the recall that `Migration` reports, the true one, and that of an index in
which a share of the rows has been encoded again.

    python benchmarks/migration.py encode --wordnet /usr/share/wordnet --wordllama …/site-packages/wordllama \\
        --minilm all-MiniLM-L6-v2 --vectors glosses
    python benchmarks/migration.py run --vectors glosses
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from matryo import Index
from matryo.results import append_rows, stamp
from matryo.retrofit import Migration
from matryo.retrofit.migration.table import SHARES

Array = np.ndarray[Any, np.dtype[Any]]
OUT = Path("docs/results/migration.jsonl")
TEXTS, QUERIES = 10_000, 1000
PAIRS = (500, 2000, 4000)
MODELS = {"wordllama": "wordllama 0.4 l2_supercat_256", "minilm": "all-MiniLM-L6-v2"}
K, SHORTLIST = 10, 100


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    commands = parser.add_subparsers(required=True)
    texts = commands.add_parser("encode")
    for name in ("wordnet", "wordllama", "minilm", "vectors"):
        texts.add_argument(f"--{name}", type=Path, required=True)
    texts.set_defaults(run=run_encode)
    measured = commands.add_parser("run")
    measured.add_argument("--vectors", type=Path, required=True)
    measured.set_defaults(run=run_all)
    args = parser.parse_args()
    args.run(args)


def run_encode(args: argparse.Namespace) -> None:
    """Vectors of one list of texts by both models."""
    from sentence_transformers import SentenceTransformer
    from support.unseen_sets import Sources, texts, wordllama

    given = texts(Sources(wordnet=args.wordnet))
    chosen = [given[row] for row in np.random.default_rng(0).permutation(len(given))[:TEXTS]]
    args.vectors.mkdir(parents=True, exist_ok=True)
    np.save(args.vectors / "wordllama.npy", wordllama(args.wordllama, chosen))
    model = SentenceTransformer(str(args.minilm), device="cpu")
    np.save(args.vectors / "minilm.npy", model.encode(chosen, batch_size=64, show_progress_bar=True))


def run_all(args: argparse.Namespace) -> None:
    """Both directions, with several numbers of pairs."""
    for old, new in (("wordllama", "minilm"), ("minilm", "wordllama")):
        left, right = (np.load(args.vectors / f"{name}.npy").astype(np.float32) for name in (old, new))
        order = np.random.default_rng(1).permutation(len(left))
        queries, rows = order[:QUERIES], order[QUERIES:]
        for count in PAIRS:
            begin = time.perf_counter()
            fitted = Migration.fit(left[rows[:count]], right[rows[:count]], k=K, shortlist=SHORTLIST,
                                   old_model=MODELS[old], new_model=MODELS[new])  # fmt: skip
            seconds = time.perf_counter() - begin
            figures = measured(fitted, left, right, queries, rows[count:])
            said = {entry.name: [entry.recall, entry.shortlist] for entry in fitted.table}
            subject = f"{old} → {new}, WordNet glosses"
            figures |= {"pairs": count, "seconds": seconds, "bridge": fitted.bridge.name, "said": said,
                        "said_mixed": {str(share): entry.recall for share, entry in fitted.mixed.items()},
                        "k": K, "shortlist": SHORTLIST, "queries": QUERIES}  # fmt: skip
            print(subject, count, f"{seconds:.1f} s", fitted, figures, sep="\n", flush=True)
            append_rows(args.out, [stamp("migration", subject, figures, seed=0)])


def measured(fitted: Migration, old: Array, new: Array, queries: Array, rows: Array) -> dict[str, Any]:
    """What an index of ``rows`` finds: of the old model, mapped, and with a share of its rows encoded again."""
    truth = nearest(new[rows], new[queries], K)
    mapped = fitted.transform(old[rows])
    cases = {"stay": (old[rows], old[queries]), "mapped": (mapped, new[queries])}
    random = np.random.default_rng(2)
    for share in SHARES:
        again = random.random(len(rows)) < share
        cases[str(share)] = (np.where(again[:, None], new[rows], mapped), new[queries])
    found = {}
    for name, (database, asked) in cases.items():
        short = nearest(database, asked, SHORTLIST)
        found[name] = [recall(truth, short[:, :K]), recall(truth, short)]
    return {"rows": len(rows), "found": found}


def nearest(database: Array, queries: Array, keep: int) -> Array:
    """The rows that an index returns."""
    with tempfile.TemporaryDirectory() as work, Index.create(Path(work) / "index", database.shape[1]) as index:
        index.add(database)
        return np.asarray(index.search(queries, k=keep).ids)


def recall(truth: Array, found: Array) -> float:
    """The share of the true rows that was found."""
    return float(np.mean([np.isin(true, some).mean() for true, some in zip(truth, found, strict=True)]))


if __name__ == "__main__":
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "2")
    main()
