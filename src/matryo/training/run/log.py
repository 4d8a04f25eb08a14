"""The log of a training: the progress bar, metrics.jsonl and TensorBoard."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from matryo.files import parse_json, replacing, storage
from matryo.progress import tqdm
from matryo.training.run.paths import METRICS

if TYPE_CHECKING:
    from pathlib import Path


class Log:
    """Writes metrics to the progress bar, metrics.jsonl and TensorBoard; only the first process writes.

    Lines after the checkpoint that a run resumes from are dropped, so that each step appears once.
    """

    def __init__(self, folder: Path, *, done: int, total: int, enabled: bool, progress: bool) -> None:
        self.enabled, self.progress = enabled, enabled and progress   # progress: whether bars are shown
        self.bar = tqdm(
            total=total, initial=done, desc=folder.name, unit="step", disable=not (self.progress and total),
            dynamic_ncols=True, smoothing=0.05, mininterval=0.1 if sys.stderr.isatty() else 30,
        )  # fmt: skip
        self.path = folder / METRICS
        self.board: Any = None
        if enabled:
            self._drop_after(done)
            self.board = _tensorboard(folder / "tensorboard", done)

    def line(self, step: int, kind: str, **figures: Any) -> None:
        """Record ``figures`` of ``step``; a dict holds one value per dim: ``loss={8: 1.2, 16: 0.9}``."""
        if not self.enabled:
            return
        with storage(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "kind": kind, **figures}) + "\n")
        for name, value in figures.items():
            parts = value.items() if isinstance(value, dict) else [("", value)]
            for part, number in parts:
                if self.board is not None and isinstance(number, (int, float)):
                    self.board.add_scalar(f"{kind}/{name}{f'/{part}' if part != '' else ''}", number, step)

    def remark(self, text: str) -> None:
        """Print a line above the bar."""
        if self.progress:
            self.bar.write(text, file=sys.stderr)

    def close(self) -> None:
        """Close the bar and flush TensorBoard."""
        self.bar.close()
        if self.board is not None:
            self.board.close()

    def _drop_after(self, done: int) -> None:
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_bytes().splitlines():
            try:
                if parse_json(line)["step"] <= done:
                    kept.append(line + b"\n")
            except (ValueError, LookupError, TypeError):   # a line truncated by a kill, or damaged
                continue
        with replacing(self.path) as file:
            file.writelines(kept)


def _tensorboard(folder: Path, done: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:   # metrics.jsonl has everything; TensorBoard is a view of it
        return None
    return SummaryWriter(str(folder), purge_step=done + 1)
