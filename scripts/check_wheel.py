"""Use the installed wheel as a stranger would: no sources, no torch, only what the wheel brought along."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import matryo
from matryo import EmbeddingSet, Index, Nesting, evaluate, truncate
from matryo.compiled import NUMPY, isa
from matryo.data import decode_all, emoji


def main() -> None:
    """Import, bundled data, vectors to a table, the command line, and the error for what is not installed."""
    home = Path(matryo.__file__).resolve()
    assert "site-packages" in home.parts, f"not the installed wheel: {home}"
    assert "torch" not in sys.modules
    assert (home.parent / "report" / "templates" / "report.html.j2").is_file(), "the wheel must carry the templates"
    assert (home.parent / "serve" / "explorer" / "page" / "app.js").is_file(), "the wheel must carry the page"
    assert (home.parent / "losses" / "sentence_transformers" / "citations.bib").is_file(), "the wheel must carry them"

    assert isa() != NUMPY, "the wheel must carry the compiled core"

    dataset = emoji()
    flat = dataset.split("flat")
    pixels = decode_all(flat, range(64), progress=False)
    assert pixels.shape == (64, 32, 32, 3)

    with tempfile.TemporaryDirectory() as folder:
        vectors = pixels.reshape(64, -1)[:, ::12].astype(np.float32)
        for name in ("database", "queries"):
            EmbeddingSet.write(Path(folder) / name, vectors, labels=flat.labels[:64], nesting=Nesting([8, 64, 256]))
        sets = [EmbeddingSet.open(Path(folder) / name) for name in ("database", "queries")]
        assert evaluate(*sets, progress=False).at(256).top1 == 1.0   # each picture finds itself
        assert truncate(vectors, 8).shape == (64, 8)
        with Index.create(Path(folder) / "index", [64, 256]) as index:
            index.add(vectors)
            assert index.search(vectors, k=1).ids.ravel().tolist() == list(range(64))

    command = [sys.executable, "-m", "matryo"]
    helped = subprocess.run([*command, "train", "--help"], capture_output=True, text=True, check=True)
    assert "imagenet-rn50-mrl" in helped.stdout, "the wheel must carry the recipes"
    refused = subprocess.run([*command, "train", "demo"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1, refused
    assert "pip install 'matryo[train]'" in refused.stderr, refused.stderr
    print(f"wheel {matryo.__version__}, {isa()}: 1 passed, 0 failed")


if __name__ == "__main__":
    main()
