"""The arguments of a compression: checked settings, and held-out queries for the choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import as_integer
from matryo.embeddings.manifest import as_plain
from matryo.errors import InputError
from matryo.retrieve.compress.choosing import KINDS, relevant_places
from matryo.retrieve.compress.codes import scoring
from matryo.retrieve.compress.sample import Sample, check_columns
from matryo.retrieve.compress.trial import Trial
from matryo.retrofit import Moments
from matryo.retrofit.reading import batches_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matryo.arrays import Floats, Integers
    from matryo.retrieve.compress.codes.fitted import Fitted
    from matryo.retrofit import Retrofit

METRICS = ("cosine", "ip", "l2")
MOST_BYTES = 8192
_TESTS = 1000   # held-out queries
_LOST = 2000    # rows that show what codes lose


def check_settings(metric: str, k: int, shortlist: int, bytes_per_vector: int) -> None:
    """Raise for settings out of range."""
    if metric not in METRICS:
        raise InputError("metric must be cosine, ip or l2", got=repr(metric), cure="cosine suits most embeddings")
    as_integer(k, "k", 1, cure="pass k=10")
    as_integer(shortlist, "shortlist", 1, cure="pass shortlist=100")
    as_integer(bytes_per_vector, "bytes_per_vector", 1, MOST_BYTES, cure="pass bytes_per_vector=64")


def as_kinds(kinds: Iterable[str], budget: int, metric: str) -> tuple[str, ...]:
    """The names of the codes that may be chosen."""
    names = tuple(kinds)
    if not names or not set(names) <= set(KINDS):
        raise InputError(f"kinds must be some of {', '.join(KINDS)}", got=", ".join(map(str, names)) or "none",
                         cure="kinds=('int8', 'bit')")  # fmt: skip
    room = budget if metric == "cosine" else budget - 4
    if not any(name == "product" or (budget >= 2 if name == "float16" else room >= 1) for name in names):
        rule = f"{', '.join(names)} need more bytes under {metric}"
        raise InputError(rule, got=budget, cure="pass bytes_per_vector=8")
    return names


def as_queries(queries: Any, relevance: Any, metric: str) -> tuple[Floats | None, list[Integers] | None]:
    """Queries and the relevant rows of each, or None."""
    cure = "pass a list with the row numbers that are relevant to each query"
    if queries is None:
        if relevance is not None:
            raise InputError("relevance needs queries", got="none", cure="pass queries=…")
        return None, None
    asked = scoring.prepared(np.concatenate(list(batches_of(queries))), metric)
    if len(asked) < 2:
        raise InputError("there must be at least 2 queries", got=len(asked), cure="leave queries out")
    if relevance is None:
        return asked, None
    try:
        pairs = [np.asarray([*some], np.int64).ravel() for some in relevance]
    except (TypeError, ValueError) as error:
        raise InputError("relevance must list row numbers per query", got=error, cure=cure) from None
    if len(pairs) != len(asked):
        rule = f"relevance must have one entry for each of the {len(asked)} queries"
        raise InputError(rule, got=len(pairs), cure=cure)
    if any(len(some) and some.min() < 0 for some in pairs):
        raise InputError("relevance must list row numbers of at least 0", got="a negative one", cure=cure)
    return asked, pairs


def check_map(retrofit: Retrofit | None, dim: int, model: Any) -> None:
    """Raise for a map of other vectors."""
    if retrofit is None:
        return
    cure = "fit a map on vectors of the model that made these"
    if retrofit.dim != dim:
        raise InputError(f"the map must be fitted on vectors with {dim} columns", got=retrofit.dim, cure=cure)
    check_model(retrofit.provenance.get("model"), model, "the map", cure)


def check_model(fitted: Any, model: Any, name: str, cure: str) -> None:
    """Raise if two models are known and differ."""
    if fitted and model and fitted != model:
        raise InputError(f"{name} was fitted on vectors of {fitted}", got=f"vectors of {model}", cure=cure)


def model_of(vectors: Any) -> Any:
    """The model that embeddings name, or an empty text."""
    own = getattr(vectors, "manifest", None)
    return as_plain("model", getattr(own, "model", "") or getattr(vectors, "model", "") or "")


def held_out(
    sample: Sample, asked: Floats | None, pairs: list[Integers] | None, metric: str, k: int, shortlist: int, seed: int
) -> tuple[Sample, Trial, Moments | None]:
    """The rows to fit to, the trial, and the moments of the queries that a rotation may see."""
    order = np.random.default_rng(seed)
    if asked is None:
        chosen = order.permutation(len(sample.vectors))
        tests = chosen[: min(_TESTS, len(chosen) // 8)]
        rest = np.sort(chosen[len(tests) :])
        queries, own = sample.vectors[tests], None
        moments = Moments.of_arrays(sample.moments.arrays())
        moments.remove(queries)
        sample = Sample(moments, sample.rows[rest], sample.vectors[rest], sample.seen)
    else:
        check_columns(asked, sample.dim, "queries")
        if pairs is not None and max((int(some.max()) for some in pairs if len(some)), default=-1) >= sample.seen:
            rule = f"relevance must list rows of the {sample.seen} vectors"
            raise InputError(rule, got=max(int(some.max()) for some in pairs if len(some)), cure="count rows from 0")
        mixed = order.permutation(len(asked))
        tests = mixed[: max(1, len(mixed) // 2)][:_TESTS]
        own = Moments(sample.dim)
        own.add(asked[mixed[max(1, len(mixed) // 2) :]])
        queries = asked[tests]
    relevant = None if pairs is None else relevant_places([pairs[test] for test in tests], sample.rows)
    count = len(sample.vectors)
    trial = Trial(sample.vectors, queries, metric, min(k, count), min(shortlist, count), relevant)
    return sample, trial, own


def origin(
    vectors: Any, model: Any, sample: Sample, seed: int, fitted: Fitted, metric: str
) -> dict[str, Any]:
    """The vectors that were fitted to, and the share of their squared norm that codes lose."""
    named = model_of(vectors) if model is None else as_plain("model", model)
    rows = sample.vectors[:_LOST]
    lost = scoring.lost(fitted, metric, rows, fitted.codec.encode(fitted.coordinates(rows)))
    whole = max(float(np.square(rows, dtype=np.float64).sum()), np.finfo(float).tiny)
    return {"model": named, "rows": sample.seen, "seed": seed, "lost": lost / whole}
