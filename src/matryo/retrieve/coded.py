"""Coded: a store that may keep only codes of a few bytes per vector, and what such an index cannot do.

>>> import tempfile, numpy as np
>>> from matryo.retrieve.compress import Compression
>>> vectors = np.random.default_rng(0).normal(size=(2000, 32)) * np.geomspace(1, 0.05, 32)
>>> store = Coded.create(f"{tempfile.mkdtemp()}/mine", compression=Compression.fit(vectors, dim=16, bits=8))
>>> ids = store.add(vectors)
>>> store.keeps_full, store.about.row_bytes, store.get([7])[0].shape
(False, 16, (1, 32))
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.arguments import checked
from matryo.errors import InputError, MatryoError
from matryo.nesting import Nesting, as_nesting
from matryo.retrieve.compress import Compression
from matryo.retrieve.compress.choosing import KINDS
from matryo.retrieve.rotated import Rotated
from matryo.retrieve.store import forks
from matryo.retrieve.store.about import About
from matryo.retrieve.store.opening import create
from matryo.retrieve.store.rotating.coding import Coding
from matryo.retrieve.store.segments.segment import Limits
from matryo.retrieve.store.sql import rotations
from matryo.retrieve.vectors.blocks import CODES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

    from matryo.retrieve.vectors.metric import Metric

SCANNED = tuple(kind for kind in KINDS if kind != "float16")
"""The codes that an index may keep: those that the compiled core scans."""


class Coded(Rotated):
    """A store of full vectors, or of codes."""

    @classmethod
    @checked
    def create(
        cls, folder: str | Path, nesting: Nesting | Iterable[int] | int | None = None, *, dtype: str = "float32",
        int8_up_to: int = 0, metric: Metric = "cosine", limits: Limits | None = None,
        model: str | Mapping[str, Any] = "", rotation: Any = None, compression: Any = None,
    ) -> Self:  # fmt: skip
        """Create it empty in a new or empty ``folder``, open for writing.

        ``nesting`` is a nesting or a list of dims: the dims that a plan can read, the last one that of the vectors. The
        dim of the vectors alone gives the powers of two up to it. Blocks up to ``int8_up_to`` also get 8-bit copies,
        for first stages that read a quarter of the bytes. ``model`` describes what made the vectors, as in an
        embeddings folder: a name, or for example ``matryo.load("runs/mine").description``. ``rotation`` is for vectors
        that were not trained nested: "auto", a :class:`matryo.Retrofit` or the path of one. With "auto" the index fits
        one to its vectors as soon as it holds enough, and keeps it only if searches of few dims find more with it.

        With ``compression``, a :class:`matryo.Compression` or the path of one, only codes are stored, a few bytes per
        vector. Searches score the codes, vectors come back approximately, and what is lost was measured when the
        compression was chosen: ``print(index.compression)``. The dims and the metric are those of the compression.
        """
        if compression is None:
            return super().create(
                folder, nesting, dtype=dtype, int8_up_to=int8_up_to, metric=metric, limits=limits, model=model,
                rotation=rotation,
            )  # fmt: skip
        own = _as_compression(compression)
        other = nesting not in (None, own.dim) and as_nesting(nesting).dims != (own.dim,)   # type: ignore[arg-type]
        given = {"nesting": other, "dtype": dtype != "float32",
                 "int8_up_to": bool(int8_up_to), "rotation": rotation is not None,
                 "metric": metric not in ("cosine", own.metric)}  # fmt: skip
        wrong = [name for name, differs in given.items() if differs]
        if wrong:
            rule = "an index of codes has the dims, the metric and the rotation of its compression"
            raise InputError(rule, got=f"{wrong[0]} and compression", cure=f"drop {wrong[0]}")
        about = About(Nesting([own.dim]), CODES, 0, own.metric, own.bytes_per_vector)   # type: ignore[arg-type]
        made, origin = Coding.of(own), model or own.provenance.get("model") or ""
        with forks.no_fork:
            opened = create(Path(folder), about, origin, lambda base: rotations.write(base, made, rotations.Wish()))
            return cls(opened, limits or Limits())

    @property
    def nesting(self) -> Nesting:
        """The dims that a plan can read."""
        return self.about.nesting

    @property
    def metric(self) -> Metric:
        """The metric: "cosine", "ip" or "l2". A larger score is always nearer."""
        return self.about.metric

    @property
    def dtype(self) -> str:
        """The dtype of the stored vectors."""
        return self.about.dtype

    @property
    def compression(self) -> Compression | None:
        """The compression whose codes are stored, with its table of what each code keeps; None for full vectors."""
        current = self.snapshot().rotation
        return current.compression if isinstance(current, Coding) else None

    @property
    def keeps_full(self) -> bool:
        """Whether the vectors are stored; else only codes are, and vectors come back approximately."""
        return not self.about.code_bytes

    @property
    def measured(self) -> dict[str, Any]:
        """The recall of the codes that was measured among all vectors when they were added; empty if it was not."""
        return self._read_records(lambda: rotations.read_recall(self._database))

    def record_recall(self, facts: Mapping[str, Any]) -> None:
        """Record, durably, what :meth:`matryo.retrieve.compress.filling.Filling.recall` returned."""
        with self._changing(), self._committing():
            rotations.write_recall(self._database, facts)

    def _before_rotation(self) -> None:
        self._check_full("a rotation", "a code has a rotation of its own")

    def _check_full(self, what: str, cure: str) -> None:
        """Raise if only codes are stored."""
        if not self.keeps_full:
            got = f"codes of {self.about.code_bytes} bytes"
            raise InputError(f"{what} needs the full vectors, which this index does not store", got=got, cure=cure)

    def _compressed(self, bytes_per_vector: int, queries: Any, **settings: Any) -> Compression:
        """Choose what to spend ``bytes_per_vector`` on, for an index of codes."""
        self._check_full("choosing a code", "plan on the index that the vectors are from")
        return Compression.choose(self, bytes_per_vector, queries, metric=self.about.metric, kinds=SCANNED, **settings)


def _as_compression(compression: Any) -> Compression:
    rule, cure = "compression must be a matryo.Compression, or the folder of one", "index.plan(bytes_per_vector=64)"
    if isinstance(compression, str | Path):
        try:
            compression = Compression.load(compression)
        except MatryoError as error:
            if Path(compression).exists():
                raise
            raise InputError(rule, got=repr(str(compression)), cure=cure) from error
    if not isinstance(compression, Compression):
        raise InputError(rule, got=type(compression).__name__, cure=cure)
    if compression.code not in SCANNED:
        rule = f"an index keeps codes of {', '.join(SCANNED)}"
        cure = "choose with kinds=('int8', 'product'), or create the index with dtype='float16'"
        raise InputError(rule, got=compression.code, cure=cure)
    return compression
