"""Encode a split into an embeddings folder: streaming, resumable, with the head beside the vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from matryo.embeddings import EmbeddingSet, EmbeddingWriter, Head
from matryo.errors import EmbeddingsError

if TYPE_CHECKING:
    from matryo.data import Dataset
    from matryo.heads import NestedLinear
    from matryo.training.trained import TrainedModel

__all__ = ["encode_split", "head_arrays"]


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
    images, out = dataset.split(split), Path(out)
    names = [images.name(i) for i in range(len(images))]
    unique = len(set(names)) == len(names)   # they may repeat in a split that was put together by hand
    if (out / "manifest.json").exists() and not overwrite:
        there = EmbeddingSet.open(out)
        about = there.manifest
        stored = (about.model, about.dtype, about.dataset, about.split, about.classes)
        same = stored == (model.description, dtype, dataset.name, split, dataset.classes)
        same = same and np.array_equal(np.asarray(there.labels), images.labels)
        if not same or (unique and list(there.ids) != names):
            raise _other(out, there)
        return there
    writer = EmbeddingWriter(
        out,
        dim=model.nesting.dim,
        dtype=dtype,
        # Rounding depends on the batch and the device, and a continued file must equal an uninterrupted one.
        fingerprint={"count": len(images), "batch": batch, "device": model.device.type},
        head=head_arrays(model.network.head) if dataset.classes == model.classes else None,
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
        bar = tqdm(total=len(images), initial=done, desc=f"encode {split}", unit="image", delay=2, disable=not progress)
        with bar:
            for vectors, labels in model.embed(images, start=done, batch=batch):
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
