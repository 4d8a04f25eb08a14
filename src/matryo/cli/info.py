"""Describe this installation, or a run, embeddings, an index or an exported model, in a few lines.

Nothing is computed and nothing is changed. --json prints one JSON object per PATH.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from matryo.compiled import core, isa
from matryo.embeddings.manifest import MANIFEST, Manifest
from matryo.errors import InputError
from matryo.results import holds_rows, read_rows, versions
from matryo.retrieve.shards import index_there, open_index
from matryo.training.run.paths import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PATHs, and the form of the answer."""
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH",
        help="run folder, embeddings folder (or a folder of these), index, exported model, or file of result rows; "
        "without PATH, this installation",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")


def run(args: argparse.Namespace) -> None:
    """Print what each PATH holds, or what is installed."""
    for path in args.paths or [None]:
        facts = installation() if path is None else describe(path)
        if args.json:
            print(json.dumps(facts, ensure_ascii=False))
            continue
        print(f"{path or 'matryo'}: {facts.pop('kind')}")
        width = max(map(len, facts))
        for name, value in facts.items():
            if value not in (None, "", [], {}):
                print(f"  {name:{width}}  {_text(value)}")


def installation() -> dict[str, Any]:
    """Return the versions of the packages, and what runs the searches, as JSON values."""
    found = core()
    searches = "numpy" if found is None else f"the compiled core, {isa()}, up to {found.default_threads()} threads"
    return {"kind": "installation", "searches run in": searches, **versions()}


def describe(path: Path) -> dict[str, Any]:
    """Return what ``path`` holds as JSON values; "kind" says what it is."""
    if RunFolder(path).exists:
        return _run(RunFolder(path))
    if (path / MANIFEST).is_file():
        return _embeddings(Manifest.load(path))
    if found := sorted([*path.glob(f"*/{MANIFEST}"), *path.glob(f"*/*/{MANIFEST}")]):   # pairs are a level deeper
        splits = {str(file.parent.relative_to(path)): Manifest.load(file.parent) for file in found}
        texts = {name: f"{m.count:,} vectors of {m.dim} dimensions, {m.dtype}" for name, m in splits.items()}
        return {"kind": "embeddings of several splits", **texts}
    if index_there(path):
        with open_index(path) as index:
            return {"kind": "index", **index.describe().to_dict()}
    if (facts := _exported(path)) is not None:
        return facts
    if path.is_file() and holds_rows(path):
        rows = read_rows(path)
        return {"kind": "result rows", "rows": len(rows), **Counter(f"kind {row.kind}" for row in rows)}
    rule = "PATH must be a run, embeddings, an index, an exported model or result rows"
    state = "holds none of these" if path.exists() else "does not exist"
    raise InputError(rule, got=f"{path}, which {state}", cure="check the path")


def _run(folder: RunFolder) -> dict[str, Any]:
    recipe = folder.recipe
    facts: dict[str, Any] = {
        "kind": "run" if folder.complete else "unfinished run",
        "recipe": f"{recipe.name} ({recipe.variant})",
        "encoder": " + ".join(filter(None, (recipe.encoder.name, recipe.text.encoder))),
        "data": recipe.data.source,
        "seed": recipe.loop.seed,
    }
    if not folder.complete:
        return {**facts, "next": "run its `matryo train` command again to finish it"}
    row = folder.row
    return {
        **facts, "dims": list(folder.dims), "classes": len(folder.classes), "sides": list(folder.sides),
        **row.by_dim(), "trained": row.when, "seconds": row.figures["seconds"],
        "encoded splits": sorted(path.parent.name for path in folder.embeddings.glob(f"*/{MANIFEST}")),
    }  # fmt: skip


def _embeddings(manifest: Manifest) -> dict[str, Any]:
    return {
        "kind": "embeddings", "vectors": manifest.count, "dim": manifest.dim, "dims": list(manifest.nesting.dims),
        "dtype": manifest.dtype, "normalized": manifest.normalized, "model": manifest.title,
        "dataset": " / ".join(filter(None, (manifest.dataset, manifest.split))), "classes": len(manifest.classes),
        "files": sorted(manifest.files), "bytes": sum(record.size for record in manifest.files.values()),
    }  # fmt: skip


def _exported(path: Path) -> dict[str, Any] | None:
    """Return the facts of a folder that `matryo export` wrote, from its card; None for another folder."""
    try:
        _, front, body = (path / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    except (OSError, ValueError):
        return None
    if "- matryo" not in front.splitlines():
        return None
    fields = dict(line.split(": ", 1) for line in front.splitlines() if ": " in line)
    _, model, dims = [line for line in body.splitlines() if line][:3]
    kind = f"model exported for {fields['library_name']}"
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {"kind": kind, "task": fields["pipeline_tag"], "model": model, "dims": dims, "bytes": size}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key}: {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
