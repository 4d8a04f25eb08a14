"""Encode a split into embeddings folders: streaming, resumable, with the head beside the vectors.

Pairs become two folders, queries and candidates, and relevance.tsv, which says in the ids of both what belongs to what.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from matryo.data.dataset import PairSplit
from matryo.embeddings import EmbeddingSet, EmbeddingWriter, Head
from matryo.errors import EmbeddingsError, InputError
from matryo.files import replacing
from matryo.training.fits import noun

if TYPE_CHECKING:
    from matryo.data import Dataset
    from matryo.heads import NestedLinear
    from matryo.training.trained import TrainedModel

__all__ = ["RELEVANCE", "encode_pairs", "encode_split", "head_arrays"]

RELEVANCE = "relevance.tsv"


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
    """Write the embeddings of ``dataset``'s ``split`` to the folder ``out``; a finished one is left as it is.

    The vectors are stored as the head reads them, not normalised. The head goes along when the dataset has the
    model's classes.
    """
    items, out = dataset.split(split), Path(out)
    if isinstance(items, PairSplit):
        raise InputError("pairs are two sets of embeddings", got=f"split {split!r}", cure="use encode_pairs")
    return _encode(model, dataset, split, items, out, dtype, batch, overwrite, progress)


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
    """Write both sides of ``dataset``'s pairs to ``out/queries`` and ``out/candidates``, and out/relevance.tsv.

    The latter is BEIR's: a header, then query-id, corpus-id and score a line.
    """
    pairs, out = dataset.split(split), Path(out)
    options = (dtype, batch, overwrite, progress)
    queries = _encode(model, dataset, split, pairs.queries, out / "queries", *options)
    candidates = _encode(model, dataset, split, pairs.candidates, out / "candidates", *options)
    asked, found = queries.ids, candidates.ids
    lines = ["query-id\tcorpus-id\tscore"]
    for (query, candidate), grade in zip(pairs.pairs.tolist(), pairs.grades.tolist(), strict=True):
        lines.append(f"{asked[query]}\t{found[candidate]}\t{grade:g}")
    with replacing(out / RELEVANCE) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return queries, candidates


def _encode(
    model: TrainedModel,
    dataset: Dataset,
    split: str,
    items: Any,
    out: Path,
    dtype: str,
    batch: int,
    overwrite: bool,
    progress: bool,
) -> EmbeddingSet:
    names = [items.name(i) for i in range(len(items))]
    unique = len(set(names)) == len(names)   # they may repeat in a split that was put together by hand
    if (out / "manifest.json").exists() and not overwrite:
        there = EmbeddingSet.open(out)
        about = there.manifest
        stored = (about.model, about.dtype, about.dataset, about.split, about.classes)
        same = stored == (model.description, dtype, dataset.name, split, dataset.classes)
        same = same and np.array_equal(np.asarray(there.labels), items.labels)
        if not same or (unique and list(there.ids) != names):
            raise _other(out, there)
        return there
    writer = EmbeddingWriter(
        out,
        dim=model.nesting.dim,
        dtype=dtype,
        # Rounding depends on the batch and the device, and a continued file must equal an uninterrupted one.
        fingerprint={
            "count": len(items),
            "batch": batch,
            "device": model.device.type,
            "precision": model.precision,
        },
        head=head_arrays(model.head) if model.head is not None and dataset.classes == model.classes else None,
        overwrite=overwrite,
        nesting=model.nesting,
        model=model.description,
        dataset=dataset.name,
        split=split,
        classes=dataset.classes,
        superclasses=dataset.superclasses,
        superclass_of=dataset.superclass_of,
    )
    with writer:
        done = writer.count
        what = noun(items)
        bar = tqdm(
            total=len(items), initial=done, desc=f"encode {split} {what}", unit=what[:-1], delay=2, disable=not progress
        )
        with bar:
            for vectors, labels in model.embed(items, start=done, batch=batch):
                ids = names[writer.count : writer.count + len(vectors)] if unique else None
                writer.append(vectors, labels, ids)
                bar.update(len(vectors))
    return EmbeddingSet.open(out)


def _other(out: Path, there: EmbeddingSet) -> EmbeddingsError:
    about = there.manifest
    return EmbeddingsError(
        f"{out} holds other embeddings",
        got=f"{len(there)} {about.dtype} vectors of {about.dataset} {about.split} by {about.title or '?'}",
        cure="choose another --out, or pass --overwrite",
    )


def head_arrays(head: NestedLinear) -> Head:
    """The head as the numpy side reads it."""
    dims = head.nesting.dims
    if head.tied:
        return Head.tied(_numpy(head.weight), None if head.bias is None else _numpy(head.bias), dims=dims)
    biases = None if head.bias is None else {dim: _numpy(head.bias_at(dim)) for dim in dims}
    return Head.separate({dim: _numpy(head.weight_at(dim)) for dim in dims}, biases)


def _numpy(tensor: Any) -> Any:
    return tensor.detach().float().cpu().numpy()
