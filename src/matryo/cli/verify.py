"""Read every byte of runs, embeddings, indexes, exports, reports or packed images, and compare the checksums.

PATH may also be a folder that holds some of these, such as runs/. A run includes its embeddings and exports. No file is
changed. One line per part says what was checked, or which file is damaged and how to repair it; the exit code is 1 if
any is. --json prints one JSON object per part.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from matryo.data.images.npz import verify_npz
from matryo.embeddings import EmbeddingSet
from matryo.embeddings.manifest import FILES, MANIFEST
from matryo.errors import InputError, MatryoError
from matryo.folders import RECORD, restore, verify_record
from matryo.progress import tqdm
from matryo.retrieve import Index
from matryo.retrieve.plan.plan import size_text
from matryo.training.run.paths import EMBEDDINGS, METRICS, SHAPES, RunFolder

_INDEX = ("index.sqlite", "segments")
_DEPTH = 4   # of folders that are searched for parts
_LONG = 1 << 30   # bytes that take longer than about two seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PATHs, and the form of the answer."""
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH",
        help="run folder, embeddings folder, index, exported model, report or packed images, or a folder of these",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> None:
    """Verify every part, print a line for each, and raise at the end if one is damaged."""
    parts = {part: kind for path in args.paths for part, kind in _parts_of(path)}
    sizes = {part: _sizes(part, kind) for part, kind in parts.items()}
    total, damaged = sum(map(sum, sizes.values())), 0
    with tqdm(
        total=total, desc="verify", unit="B", unit_scale=True, disable=args.quiet or total < _LONG, dynamic_ncols=True
    ) as bar:
        for part, kind in parts.items():
            bar.set_postfix_str(part.name)
            count, size = len(sizes[part]), sum(sizes[part])
            facts: dict[str, Any] = {"path": str(part), "kind": kind, "files": count, "bytes": size}
            try:
                facts |= {"checked": _verify(part, kind), "damage": None}
            except MatryoError as error:
                facts |= {"checked": None, "damage": str(error)}
                damaged += 1
            bar.update(size)
            bar.write(json.dumps(facts, ensure_ascii=False) if args.json else _line(facts), file=sys.stdout)
    if damaged:
        rule = f"{damaged} of {len(parts)} part{'s' * (len(parts) != 1)} failed verification"
        raise InputError(rule, cure="the lines above name the files, and say how to repair them")


def _parts_of(path: Path) -> list[tuple[Path, str]]:
    restore(path)
    parts = list(_find(path, _DEPTH))
    if not parts:
        rule = "PATH must be or hold a run, embeddings, an index, an exported model, a report or packed images"
        state = "holds none of these" if path.exists() else "does not exist"
        raise InputError(rule, got=f"{path}, which {state}", cure="check the path")
    return parts


def _find(path: Path, depth: int) -> Iterator[tuple[Path, str]]:
    """The parts in ``path``, recognised by any of their files, so that one with a lost file is not overlooked."""
    folder = RunFolder(path)
    if folder.exists:
        yield path, "run" if folder.complete else "unfinished run"
        for inside in (folder.embeddings, path / "export", *sorted(path.glob(f"width-*/{EMBEDDINGS}"))):
            yield from _find(inside, 2)
    elif any((path / name).is_file() for name in (MANIFEST, *FILES)):
        if not path.name.endswith(".partial"):   # being written: its checksums come with the last row
            yield path, "embeddings"
    elif any((path / name).exists() for name in _INDEX):
        yield path, "index"
    elif (path / RECORD).is_file():
        yield path, "report" if (path / "index.html").is_file() else "exported model"
    elif (path / "meta.json").is_file() and any(path.glob("*.npz")):
        yield path, "packed images"
    elif path.is_dir() and depth:
        for inside in sorted(path.iterdir()):
            if inside.is_dir() and not inside.is_symlink() and not inside.name.startswith("."):
                yield from _find(inside, depth - 1)


def _verify(path: Path, kind: str) -> str:
    """Verify one part; returns what was compared."""
    if kind.endswith("run"):
        return "checksums" if RunFolder(path).verify() else "sizes and structure"
    if kind == "embeddings":
        EmbeddingSet.open(path).verify()
    elif kind == "index":
        with Index.open(path) as index:
            index.verify()
    elif kind == "packed images":
        for file in sorted(path.glob("*.npz")):
            verify_npz(file)
    else:
        verify_record(path)
    return "checksums"


def _sizes(path: Path, kind: str) -> list[int]:
    """The sizes of the files of a part. Of a run, its logs do not count, nor the other parts inside it."""
    sizes = []
    for folder, folders, names in os.walk(path):
        if kind.endswith("run") and Path(folder) == path:
            folders[:] = [name for name in folders if name == SHAPES]
            names[:] = [name for name in names if name != METRICS]
        for name in names:
            with suppress(OSError):   # deleted meanwhile, by the writer of an index
                sizes.append((Path(folder) / name).stat().st_size)
    return sizes


def _line(facts: dict[str, Any]) -> str:
    if facts["damage"]:
        return f"{facts['path']}: FAILED: {facts['damage']}"
    found = f"{facts['files']:,} file{'s' * (facts['files'] != 1)}, {size_text(facts['bytes'])}"
    old = "" if facts["checked"] == "checksums" else " (written before checksums existed)"
    return f"{facts['path']}: {facts['kind']}, {found}: all {facts['checked']} match{old}"
