"""Write the generated pages: the command line, the recipes, and the tables and figures of stored rows.

::

    python scripts/make_docs.py            # write what has changed
    python scripts/make_docs.py --figures  # draw the figures of the results again, too
    python scripts/make_docs.py --check    # write nothing; list stale files and exit with 1

Every number comes from a row in docs/results/*.jsonl (see matryo.results); each page says where its rows come from.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pages import cluster, migration_picture, paper, promises, shift
from pages.best import best_tables
from pages.findings import finding
from pages.markdown import GENERATED, page, sources
from pages.models import demo_table
from pages.reference import cli_page, recipes_page

from matryo.results import Row, read_rows

ROOT = Path(__file__).resolve().parent.parent
MARKS = ("<!-- demo-table -->", "<!-- /demo-table -->")
TABLES = (
    "cluster", "compress", "engines", "feed", "filters", "layers", "losses", "maps", "migration", "modalities",
    "models", "promises", "retrieval", "retrofit", "serve", "settings", "shift", "unseen", "unseen_plans", "updates",
)  # fmt: skip
"""The modules of pages/ that make tables from rows."""
TITLES = {
    "cascade": "Adaptive classification",
    "cluster": "Clusters and routers",
    "compress": "Vectors in 8 to 1024 bytes",
    "demo": "Demo: bundled emoji",
    "demo-settings": "Settings of the demo",
    "engines": "Plans on databases",
    "filters": "Search under filters",
    "fused-losses": "Fused nested losses: time and memory",
    "generator": "Generated embeddings for large databases",
    "image-feed": "How fast training reads images",
    "image-text": "Dual encoders of images and texts",
    "layers": "Layers × dims",
    "migration": "Migration from one model to another",
    "mlm": "Masked language modelling",
    "paper": "The paper, claim by claim",
    "planner": "Does the planner keep its promise?",
    "retrieval": "Retrieval compared with other libraries",
    "retrieval-gpu": "Retrieval on a GPU",
    "retrieval-tables": "Adaptive retrieval: the paper's tables",
    "retrofit": "Maps that make existing vectors nested",
    "search-core": "The compiled core",
    "search-speed": "Exact search at many dims",
    "sentence-loss": "Nested ranking loss for sentence-transformers",
    "serve": "The HTTP server",
    "shift": "Plans that meet other queries",
    "soak": "Attacks on what we promise",
    "step-cost": "Cost of a training step",
    "text-finetune": "Fine-tuned sentence embeddings",
    "tiny-imagenet": "Tiny-ImageNet",
    "unseen": "Search with defaults on unseen kinds of vectors",
    "unseen-plans": "Plans with defaults on unseen kinds of vectors",
    "updates": "Search while the index changes",
    "vit": "A vision transformer",
}
RESULTS = """What was measured, and what it shows. Every number is computed from a stored row, and every row names the
command, commit, hardware and versions that produced it."""
WRITERS = """`matryo demo` writes rows to `runs/demo.jsonl`, and `make soak` writes those of the attacks. The programs
in `benchmarks/` write the others."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the stale pages, or with --check only list them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: the one this script is in)")
    parser.add_argument("--figures", action="store_true", help="draw the figures of the results again")
    args = parser.parse_args(argv)
    if args.figures:
        from pages import (
            compress,
            dims_picture,
            layers_picture,
            losses_figures,
            losses_picture,
            retrieval_figures,
            retrofit_picture,
        )

        for module in (compress, dims_picture, layers_picture, losses_figures, losses_picture, retrieval_figures,
                       retrofit_picture, paper):  # fmt: skip
            module.write(args.root / "docs")
    wanted: dict[Path, str | None] = dict.fromkeys(orphans(args.root))
    wanted |= pages(args.root)
    stale = {path: text for path, text in wanted.items() if read(path) != text}
    for path, text in stale.items():
        print(("stale: " if args.check else "written: " if text else "removed: ") + str(path.relative_to(args.root)))
        if not args.check and text is None:
            path.unlink()
        elif not args.check and text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return int(bool(stale) and args.check)


def read(path: Path) -> str | None:
    """The text of a file, or None where there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else None


def pages(root: Path) -> dict[Path, str]:
    """Every generated page of the checkout at ``root``, as it should be."""
    docs = root / "docs"
    stored = {path.stem: read_rows(path) for path in sorted((docs / "results").glob("*.jsonl"))}
    made = {
        docs / "reference" / "cli.md": cli_page(),
        docs / "reference" / "recipes.md": recipes_page(),
        docs / "results" / "index.md": results_index(stored),
    }
    made |= {docs / "results" / f"{name}.md": results_page(name, rows) for name, rows in stored.items()}
    if paper.NAME in stored:   # it compares the rows of several files
        made[docs / "results" / f"{paper.NAME}.md"] = paper.text(stored)
    readme = read(root / "README.md")
    if readme is not None and "demo" in stored:
        made[root / "README.md"] = between_marks(readme, demo_table(stored["demo"]))
    planning = read(docs / "planning.md")
    if planning is not None and "shift" in stored:
        made[docs / "planning.md"] = between_marks(planning, shift.summary(stored["shift"]), shift.MARKS)
    scale = read(docs / "scale.md")
    if scale is not None and "cluster" in stored:
        made[docs / "scale.md"] = between_marks(scale, cluster.estimate(stored["cluster"]), cluster.MARKS)
    promised = read(docs / "promises.md")
    if promised is not None and "soak" in stored:
        made[docs / "promises.md"] = between_marks(promised, promises.table(stored["soak"]), promises.MARKS)
        made[docs / "promises.svg"] = promises.picture(stored["soak"])
    if "migration" in stored:
        made[docs / "migration.svg"] = migration_picture.picture(stored["migration"])
    return made


def orphans(root: Path) -> list[Path]:
    """Generated result pages whose rows are gone."""
    there = sorted((root / "docs" / "results").glob("*.md"))
    return [path for path in there if path.stem != "index" and not path.with_suffix(".jsonl").exists()]


def results_index(stored: dict[str, list[Row]]) -> str:
    """The list of pages, each with its finding."""
    parts = [GENERATED, "# Results", RESULTS]
    if not stored:
        parts += ["No rows are stored yet."]
    entries = {f"[{TITLES.get(name, name)}]({name}.md)": finding(name, rows) for name, rows in stored.items()}
    parts += ["\n".join(f"- **{link}.** {text}" for link, text in entries.items())]
    return page(filter(None, [*parts, WRITERS]))


def all_makers() -> dict[str, Any]:
    """What makes the tables of each kind of row."""
    modules = (importlib.import_module(f"pages.{name}") for name in TABLES)
    return {kind: make for module in modules for kind, make in module.MAKERS.items()}


def results_page(name: str, rows: list[Row]) -> str:
    """The tables of one file of rows, and where the rows come from."""
    makers = all_makers()
    parts = [GENERATED, f"# {TITLES.get(name, name)}", *filter(None, [finding(name, rows)])]
    for kind in dict.fromkeys(row.kind for row in rows):
        chosen = [row for row in rows if row.kind == kind]
        parts += makers[kind](chosen) if kind in makers else [f"{len(chosen)} rows of kind `{kind}` have no table."]
    parts += best_tables(rows)
    return page([*parts, "## Where these rows come from", sources(name, rows)])


def between_marks(text: str, filling: str, marks: tuple[str, str] = MARKS) -> str:
    """``text`` with ``filling`` between the marks."""
    begin, end = marks
    before, found, rest = text.partition(begin)
    if not found or end not in rest:
        raise SystemExit(f"the page must hold {begin} and {end}")
    return f"{before}{begin}\n{filling}\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    sys.exit(main())
