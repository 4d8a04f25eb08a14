"""Rotated: a store that finds a rotation for its vectors, so that their first dims hold most of every score.

>>> import tempfile
>>> rng = np.random.default_rng(0)
>>> vectors = rng.normal(size=(3000, 32)) * np.linspace(2, 0.1, 32) @ np.linalg.qr(rng.normal(size=(32, 32)))[0]
>>> store = Rotated.create(f"{tempfile.mkdtemp()}/mine", 32, rotation="auto")
>>> ids = store.add(vectors)                                # enough to fit a rotation
>>> store.rotation.rung, store.about.nesting.dims
('pca', (8, 16, 32))
>>> bool(np.allclose(store.get([7])[0], vectors[7], atol=1e-5))
True
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from matryo.arguments import checked
from matryo.errors import InputError, MatryoError
from matryo.nesting import Nesting, as_nesting
from matryo.retrieve.store import Limits, Store
from matryo.retrieve.store.about import About
from matryo.retrieve.store.origin import title_of
from matryo.retrieve.store.rotating.rotation import Rotation
from matryo.retrieve.store.sql import rotations
from matryo.retrieve.store.sql.rotations import Wish
from matryo.retrofit import Retrofit
from matryo.retrofit.fitting import sensible_nesting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

    from matryo.retrieve.store.opening import Opened
    from matryo.retrieve.vectors.metric import Metric

_FEWEST = 1000   # rows, and
_PER_DIM = 4     # rows per dim, before an index fits a rotation by itself
_GROWN = 4       # times the rows of the last fit, before it fits again by itself
_SUITS = 0.25    # of the share that a map gained on its own vectors, it must gain on those of an index
_SAMPLE = 2000   # rows that show whether a map suits an index


class Rotated(Store):
    """A store with a rotation."""

    def __init__(self, opened: Opened, limits: Limits) -> None:
        super().__init__(opened, limits)
        self._due = True   # whether the next addition looks if a rotation can be fitted

    @classmethod
    @checked
    def create(
        cls, folder: str | Path, nesting: Nesting | Iterable[int] | int | None = None, *, dtype: str = "float32",
        int8_up_to: int = 0, metric: Metric = "cosine", limits: Limits | None = None,
        model: str | Mapping[str, Any] = "", rotation: Any = None,
    ) -> Self:  # fmt: skip
        """Create it empty in a new or empty ``folder``, open for writing.

        ``nesting`` is a nesting or a list of dims: the dims that a plan can read, the last one that of the vectors. The
        dim of the vectors alone gives the powers of two up to it. Blocks up to ``int8_up_to`` also get 8-bit copies,
        for first stages that read a quarter of the bytes. ``model`` describes what made the vectors, as in an
        embeddings folder: a name, or for example ``matryo.load("runs/mine").description``. ``rotation`` is for vectors
        that were not trained nested: "auto", a :class:`matryo.Retrofit` or the path of one. With "auto" the index fits
        one to its vectors as soon as it holds enough, and keeps it only if searches of few dims find more with it.
        """
        given = None if rotation is None or _is_auto(rotation) else _as_map(rotation)
        dims = _dims(nesting, given)
        made = None if given is None else Rotation.of(given, dims.dim, About(dims, metric=metric).metric)
        store = super().create(
            folder, dims, dtype=dtype, int8_up_to=int8_up_to, metric=metric, limits=limits, model=model
        )
        if rotation is not None:
            with store._changing(), store._committing():
                rotations.write(store._database, made, Wish(auto=given is None))
        return store

    @property
    def rotation(self) -> Retrofit | None:
        """The map in whose space the vectors are stored; None if they are stored as they were put in."""
        current = self.snapshot().rotation
        return current.retrofit if isinstance(current, Rotation) else None

    @checked
    def rotate(self, rotation: Any = "auto", *, queries: Any = None, progress: bool = True) -> Retrofit | None:
        """Store all vectors in another rotation, in one commit, and build the guides again; return the map.

        ``rotation`` is "auto", a :class:`matryo.Retrofit`, the path of one, or None for the vectors as they were put
        in. With "auto" a map is fitted to the vectors, and to ``queries`` if they are given; None is returned if no map
        beats the vectors as they are. Searches of other processes continue; if interrupted, the index is unchanged.
        """
        auto = _is_auto(rotation)
        if queries is not None and not auto:
            raise InputError("queries are for a map that is fitted", got=rotation, cure="pass rotation='auto'")
        with self._changing():   # raises for a reader before the work
            pass
        self._before_rotation()
        if auto:
            fitted = Retrofit.fit(self, queries, nesting=self.about.nesting, metric=self.about.metric,
                                  model=self.model, progress=progress)  # fmt: skip
            made = None if fitted.rung == "identity" else self._rotation_of(fitted)
        else:
            given = None if rotation is None else _as_map(rotation)
            made = None if given is None else self._rotation_of(given)
            self._check_suits(made)
        current = self.snapshot().rotation
        wish = Wish(auto, len(self) if auto else 0)
        if made is None and current is None:
            with self._changing(), self._committing():
                rotations.write(self._database, None, wish)
        else:
            self._turn(made, wish, progress=progress)
            self._after_rotation()
        return None if made is None else made.retrofit

    def _rotation_of(self, retrofit: Retrofit) -> Rotation:
        return Rotation.of(retrofit, self.about.nesting.dim, self.about.metric)

    def _put(self, vectors: Any, ids: Any, payload: Any, *, may_replace: bool, numbers: Any = None) -> Any:
        added = super()._put(vectors, ids, payload, may_replace=may_replace, numbers=numbers)
        if self._due:
            wish, count = self._wish(), len(self)
            self._due = wish.auto and not wish.fitted
            if self._due and count >= max(_FEWEST, _PER_DIM * self.about.nesting.dim):
                self._due = False
                with self._tidying("its vectors are not rotated yet: call index.rotate()"):
                    self.rotate("auto", progress=False)
        return added

    def _refit_if_due(self) -> None:
        """Fit the rotation that was asked for, if there is none yet, or if the index has grown and it suits it less."""
        wish, count = self._wish(), len(self)
        if not wish.auto or count < max(2, self.about.nesting.dim):
            return
        grown = count >= _GROWN * wish.fitted and (self.rotation is None or self._drift.warned)
        if not wish.fitted or grown or self._drift.warned:
            self.rotate("auto")

    def _check_suits(self, made: Rotation | None) -> None:
        """Raise if a map gains too little on these vectors in its first dims: it is one of another model."""
        if made is None or not len(self):
            return
        ours, theirs = title_of(self.model), title_of(made.retrofit.provenance.get("model") or "")
        cure = "fit one to these vectors: index.rotate('auto')"
        if ours and theirs and ours != theirs:
            raise InputError(f"a map for vectors of {ours} is needed", got=f"one of {theirs}", cure=cure)
        _, rows = self.snapshot().sample(min(len(self), _SAMPLE), seed=0)
        dims = np.array([m for m in made.retrofit.nesting.dims if m < made.retrofit.dim], np.int64)
        if not len(dims):
            return
        kept, before = _kept(made.turn(rows), dims), _kept(rows, dims)
        energy = made.retrofit.energy
        gained = max(0.0, float(np.mean([energy.get(int(m), 0.0) for m in dims])) - float(before.mean()))
        if kept.mean() < before.mean() + _SUITS * gained - 0.01:
            at = len(dims) // 2
            raise InputError(
                "this map does not suit the vectors of the index",
                got=f"{kept[at]:.0%} of their squared norm in the first {dims[at]} dims, {before[at]:.0%} without it",
                cure=cure,
            )

    def _before_rotation(self) -> None:
        """End what must not run beside a rotation; nothing for a store."""

    def _after_rotation(self) -> None:
        """Build again what was made for the old vectors; nothing for a store."""


def _kept(vectors: Any, dims: Any) -> Any:
    """The share of the squared norm of all rows in the first m columns, for each of ``dims``."""
    sums = np.cumsum(np.square(vectors, dtype=np.float64).sum(axis=0))
    return sums[dims - 1] / max(float(sums[-1]), np.finfo(float).tiny)


def _is_auto(rotation: Any) -> bool:
    return isinstance(rotation, str) and rotation == "auto"


def _as_map(rotation: Any) -> Retrofit:
    if isinstance(rotation, str | Path):
        try:
            return Retrofit.load(rotation)
        except MatryoError as error:
            if Path(rotation).exists():
                raise
            rule = "rotation must be 'auto', a Retrofit, or the folder of one"
            raise InputError(rule, got=repr(str(rotation)), cure="pass rotation='auto'") from error
    if not isinstance(rotation, Retrofit):
        rule = "rotation must be 'auto', a Retrofit, or the folder of one"
        raise InputError(rule, got=type(rotation).__name__, cure="pass rotation='auto'")
    return rotation


def _dims(nesting: Any, given: Retrofit | None) -> Nesting:
    """The nesting of a new index."""
    if nesting is None and given is not None:
        return given.nesting
    if nesting is None:
        rule = "an index needs the dims of its vectors"
        raise InputError(rule, got="no nesting", cure="pass nesting=[64, 256, 1536], or the dim alone: nesting=1536")
    if isinstance(nesting, int | np.integer) and not isinstance(nesting, bool):
        if nesting < 1:
            raise InputError("nesting must be at least 1", got=nesting, cure="pass the dim of the vectors")
        return sensible_nesting(int(nesting))
    return as_nesting(nesting)


