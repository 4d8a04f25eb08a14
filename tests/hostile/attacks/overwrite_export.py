"""Kill -9 a process that overwrites an exported model."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

from attacks.outcome import Outcome
from attacks.overwriting import overwrite
from matryo.errors import MissingExtra
from matryo.folders import foreign, restore

PROMISE = "After kill -9, an export being overwritten is the old or the new one, whole; nothing is left over."
BOUNDED, SOAK = 8, 400


def require() -> None:
    """Raise if a package is missing."""
    with MissingExtra.unless_installed("torch", "train"):
        import torch
    torch.set_num_threads(1)


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Kill writers of an export whose weights and card tell its version."""
    import torch
    from safetensors.numpy import load_file

    from matryo.export import export

    sys.path.append(str(Path(__file__).parents[2] / "helpers"))
    from export_models import text_model

    model = text_model()
    weight = next(model.network.encoder.parameters())

    def write(path: Path, version: int) -> None:
        with torch.no_grad():
            weight.fill_(version)
        export(model, "transformers", path, name=f"v{version}", overwrite=True)

    def read(path: Path) -> int:
        restore(path)   # as the next export does, on systems that need two renames
        assert foreign(path, "export") == [], "other files than the record says"
        version = re.search(r"^# v(\d+)$", (path / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
        assert version, "no version in the card"
        tensors = load_file(path / "model.safetensors").values()
        assert any(np.all(tensor == int(version[1])) for tensor in tensors), "weights of another version"
        return int(version[1])

    return overwrite(count, seed, folder / "exports" / "mine", write, read)
