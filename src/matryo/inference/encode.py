"""Encode a split into embeddings folders: streaming, resumable, with the head beside the vectors.

Pairs become two folders, queries and candidates, and relevance.tsv, which says in the ids of both what belongs to what.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from matryo.data.content import content_digest
from matryo.data.dataset import PairSplit, TextSplit
from matryo.embeddings import EmbeddingSet, EmbeddingWriter, Head
from matryo.embeddings.place import RELEVANCE
from matryo.errors import EmbeddingsError, InputError
from matryo.files import replacing
from matryo.training.recipe.against_data import noun

if TYPE_CHECKING:
    from matryo.data import Dataset
    from matryo.heads import NestedLinear
    from matryo.inference.model import TrainedModel

__all__ = ["encode_pairs", "encode_split", "head_arrays"]

_LOOKED_AT = 1024   # images; to read them all may take as long as to encode them


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

    One of another model, or of data that has changed since, is refused unless ``overwrite=True``. The vectors are
    stored as the head reads them, not normalised. The head goes along when the dataset has the model's classes.
    """
    items, out = dataset.split(split), Path(out)
    if isinstance(items, PairSplit):
        raise InputError("pairs are two sets of embeddings", got=f"split {split!r}", cure="use encode_pairs")
    model.check_reads(items)
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
    for side in (pairs.queries, pairs.candidates):
        model.check_reads(side)
    options = (dtype, batch, overwrite, progress)
    kept = not overwrite and all((out / side / "manifest.json").exists() for side in ("queries", "candidates"))
    queries = _encode(model, dataset, split, pairs.queries, out / "queries", *options)
    candidates = _encode(model, dataset, split, pairs.candidates, out / "candidates", *options)
    asked, found = queries.ids, candidates.ids
    lines = ["query-id\tcorpus-id\tscore"]
    for (query, candidate), grade in zip(pairs.pairs.tolist(), pairs.grades.tolist(), strict=True):
        lines.append(f"{asked[query]}\t{found[candidate]}\t{grade:g}")
    told = ("\n".join(lines) + "\n").encode()
    if kept and (out / RELEVANCE).exists() and (out / RELEVANCE).read_bytes() != told:
        raise _other(out, f"{RELEVANCE} of other pairs")
    with replacing(out / RELEVANCE) as file:
        file.write(told)
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
    content = content_digest(items, None if isinstance(items, TextSplit) else _LOOKED_AT)
    if (out / "manifest.json").exists() and not overwrite:
        there = EmbeddingSet.open(out)
        wanted = (model.description, dtype, dataset.name, split, dataset.classes)
        _check_same(out, there, wanted, content, items.labels, names if unique else None)
        return there
    writer = EmbeddingWriter(
        out,
        dim=model.nesting.dim,
        dtype=dtype,
        # Rounding depends on the batch and the device, and a continued file must equal an uninterrupted one.
        fingerprint={
            "count": len(items),
            "content": content,
            "names": hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest(),
            "batch": batch,
            "device": model.device.type,
            "precision": model.precision,
        },
        head=head_arrays(model.head) if model.head is not None and dataset.classes == model.classes else None,
        overwrite=overwrite,
        nesting=model.nesting,
        model=model.description,
        content=content,
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


def _check_same(
    out: Path, there: EmbeddingSet, wanted: tuple[Any, ...], content: str, labels: Any, ids: list[str] | None
) -> None:
    """Raise unless the folder ``out`` is what would be written now."""
    about = there.manifest
    same_data = (
        about.content in ("", content)   # older folders do not tell
        and np.array_equal(np.asarray(there.labels), labels)
        and (ids is None or list(there.ids) == ids)
    )
    same = (about.model, about.dtype, about.dataset, about.split, about.classes) == wanted
    if not same or not same_data:
        held = f"{len(there)} {about.dtype} vectors of {about.dataset} {about.split} by {about.title or '?'}"
        raise _other(out, f"{held}, whose data has changed since" if same else held)


def _other(out: Path, got: str) -> EmbeddingsError:
    return EmbeddingsError(
        f"{out} holds other embeddings", got=got, cure="choose another --out, or pass --force"
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
