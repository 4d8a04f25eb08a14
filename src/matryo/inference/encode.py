"""Encode a split into embeddings folders: streaming, resumable, with the head beside the vectors.

Pairs become two folders, queries and candidates, and relevance.tsv with the ids of both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.data.content import content_digest
from matryo.data.dataset import PairSplit, TextSplit
from matryo.embeddings import EmbeddingSet, EmbeddingWriter, Head
from matryo.embeddings.place import RELEVANCE, sweep_partial
from matryo.embeddings.rows import as_ids
from matryo.errors import EmbeddingsError, InputError
from matryo.files import replacing
from matryo.progress import tqdm
from matryo.training.recipe.against_data import noun

if TYPE_CHECKING:
    from matryo.data import Dataset
    from matryo.heads import NestedLinear
    from matryo.inference.model import TrainedModel

_LOOKED_AT = 1024   # images that are hashed; reading all of them may take as long as encoding


@checked
def encode_split(
    model: TrainedModel,
    dataset: Dataset,
    split: str,
    out: str | Path,
    *,
    dtype: str = "float32",
    batch: int = 512,
    overwrite: bool = False,
    progress: bool = True,
) -> EmbeddingSet:
    """Write the embeddings of the ``split`` of ``dataset`` to the folder ``out``; a finished folder is left unchanged.

    If ``out`` holds embeddings of another model or of other data, that is an error unless ``overwrite=True``. The
    vectors are not normalised, as the head expects. The head is stored too if the dataset has the model's classes.
    """
    items, out = dataset.split(split), Path(out)
    if isinstance(items, PairSplit):
        raise InputError("encode_split encodes items, not pairs", got=f"split {split!r}", cure="use encode_pairs")
    model.check_reads(items)
    return Encoding(model, dataset, split, dtype, batch, overwrite, progress).write(items, out)


@checked
def encode_pairs(
    model: TrainedModel,
    dataset: Dataset,
    split: str,
    out: str | Path,
    *,
    dtype: str = "float32",
    batch: int = 512,
    overwrite: bool = False,
    progress: bool = True,
) -> tuple[EmbeddingSet, EmbeddingSet]:
    """Write both sides of the pairs of a split to ``out/queries`` and ``out/candidates``, and ``out/relevance.tsv``.

    relevance.tsv has BEIR's format: a header, then one line per pair with query-id, corpus-id and score.
    """
    pairs, out = dataset.split(split), Path(out)
    for side in (pairs.queries, pairs.candidates):
        model.check_reads(side)
    encoding = Encoding(model, dataset, split, dtype, batch, overwrite, progress)
    kept = not overwrite and all((out / side / "manifest.json").exists() for side in ("queries", "candidates"))
    queries = encoding.write(pairs.queries, out / "queries")
    candidates = encoding.write(pairs.candidates, out / "candidates")
    query_ids, candidate_ids = queries.ids, candidates.ids
    lines = ["query-id\tcorpus-id\tscore"]
    for (query, candidate), grade in zip(pairs.pairs.tolist(), pairs.grades.tolist(), strict=True):
        lines.append(f"{query_ids[query]}\t{candidate_ids[candidate]}\t{grade:g}")
    content = ("\n".join(lines) + "\n").encode()
    if kept and (out / RELEVANCE).exists() and (out / RELEVANCE).read_bytes() != content:
        raise _other(out, f"{RELEVANCE} of other pairs")
    with replacing(out / RELEVANCE) as file:
        file.write(content)
    return queries, candidates


@dataclass(frozen=True)
class Encoding:
    """The model, the data and the options of one call."""

    model: TrainedModel
    dataset: Dataset
    split: str
    dtype: str
    batch: int
    overwrite: bool
    progress: bool

    def write(self, items: Any, out: Path) -> EmbeddingSet:
        """Encode ``items``, the split or one side of its pairs, into ``out``; a finished folder is left unchanged."""
        model, what = self.model, noun(items)
        ids, settings = self.settings(items)
        sweep_partial(out)
        if (out / "manifest.json").exists() and not self.overwrite:
            return self.stored(out, settings["content"], items.labels, ids)
        writer = EmbeddingWriter(out, overwrite=self.overwrite, **settings)
        with writer, tqdm(
            total=len(items), initial=writer.count, desc=f"encode {self.split} {what}", unit=what[:-1], delay=2,
            disable=not self.progress,
        ) as bar:  # fmt: skip
            for vectors, labels in model.embed(items, start=writer.count, batch=self.batch):
                rows = slice(writer.count, writer.count + len(vectors))
                writer.append(vectors, labels, None if ids is None else ids[rows])
                bar.update(len(vectors))
        return EmbeddingSet.open(out)

    def settings(self, items: Any) -> tuple[Any, dict[str, Any]]:
        """The ids of ``items``, and the arguments of an :class:`EmbeddingWriter` of their embeddings."""
        model, dataset = self.model, self.dataset
        names = [items.name(i) for i in range(len(items))]
        # Names may repeat in a split made in memory. An id that cannot be stored is refused before the work.
        ids = as_ids(names, len(names)) if len(set(names)) == len(names) else None
        content = content_digest(items, None if isinstance(items, TextSplit) else _LOOKED_AT)
        return ids, {
            "dim": model.nesting.dim,
            "dtype": self.dtype,
            # Batch and device affect rounding, and a resumed file must equal an uninterrupted one.
            "fingerprint": {
                "count": len(items),
                "content": content,
                "names": hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest(),
                "batch": self.batch,
                "device": model.device.type,
                "precision": model.precision,
            },
            "head": head_arrays(model.head) if model.head is not None and dataset.classes == model.classes else None,
            "nesting": model.nesting,
            "model": model.description,
            "content": content,
            "dataset": dataset.name,
            "split": self.split,
            "classes": dataset.classes,
            "superclasses": dataset.superclasses,
            "superclass_of": dataset.superclass_of,
        }

    def stored(self, out: Path, content: str, labels: Any, ids: Any) -> EmbeddingSet:
        """The embeddings in ``out``; raises unless they are what would be written now."""
        stored = EmbeddingSet.open(out)
        about = stored.manifest
        wanted = (self.model.description, self.dtype, self.dataset.name, self.split, self.dataset.classes)
        same_data = (
            about.content in ("", content)   # older folders do not store it
            and np.array_equal(np.asarray(stored.labels), labels)
            and (ids is None or list(stored.ids) == ids)
        )
        same = (about.model, about.dtype, about.dataset, about.split, about.classes) == wanted
        if not same or not same_data:
            held = f"{len(stored)} {about.dtype} vectors of {about.dataset} {about.split} by {about.title or '?'}"
            raise _other(out, f"{held}, made from other data" if same else held)
        return stored


def _other(out: Path, got: str) -> EmbeddingsError:
    return EmbeddingsError(f"{out} holds other embeddings", got=got, cure="choose another --out, or pass --force")


def head_arrays(head: NestedLinear) -> Head:
    """The head as numpy arrays."""
    dims = head.nesting.dims
    if head.tied:
        return Head.tied(_numpy(head.weight), None if head.bias is None else _numpy(head.bias), dims=dims)
    biases = None if head.bias is None else {dim: _numpy(head.bias_at(dim)) for dim in dims}
    return Head.separate({dim: _numpy(head.weight_at(dim)) for dim in dims}, biases)


def _numpy(tensor: Any) -> Any:
    return tensor.detach().float().cpu().numpy()
