"""The description of an index: its size, settings, guides and payload fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matryo.nesting import Nesting
from matryo.retrieve.plan.plan import size_text
from matryo.retrieve.store.origin import title_of
from matryo.retrieve.store.rotating.coding import Coding, outlined
from matryo.retrieve.store.rotating.rotation import Rotation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matryo.retrieve.store import Segment, Store
    from matryo.retrieve.vectors.metric import Metric


@dataclass(frozen=True)
class Description:
    """The facts about an index that a user sees."""

    path: Path
    count: int
    nesting: Nesting
    metric: Metric
    dtype: str
    int8_up_to: int
    """The dim up to which blocks also have int8 copies; 0 for none."""
    ids: str
    """The type of the ids: "integers" or "strings"."""
    segments: int
    guides: dict[str, int | None]
    """The dim of each guide, by kind; None for a guide without a dim."""
    unguided: int
    """The number of vectors that lack one of the guides, and are scanned instead."""
    joined: int
    """The number of vectors that joined the partitions after these were built."""
    drift: float | None
    """How far the joined vectors are from the means of the partitions, in multiples of the distance of the others: the
    mean of the squares. Far above 1, the partitions suit them less. None if no vector joined."""
    bytes: int
    """The size of the folder on disk."""
    fields: tuple[str, ...]
    """The names of the payload fields."""
    model: str = ""
    """The name of the model that made the vectors; empty if it is not recorded."""
    run: str = ""
    """The run folder of that model, if it is recorded."""
    shards: int = 0
    """The number of shards; 0 for an index in one folder."""
    rotation: str = ""
    """The rotation of the stored vectors, and on how many it was fitted; empty if there is none."""
    codes: str = ""
    """The codes that are stored instead of the vectors, and what they keep; empty if the vectors are stored."""

    def to_dict(self) -> dict[str, Any]:
        """The description as JSON values."""
        rest = {name: value for name, value in vars(self).items() if name not in ("path", "nesting", "fields")}
        rest |= {"fields": list(self.fields)}
        rest |= {name: getattr(self, name) or None for name in ("model", "run", "rotation", "codes")}
        if not self.shards:
            rest.pop("shards")
        return {"folder": str(self.path), "dims": list(self.nesting.dims), **rest}

    def __str__(self) -> str:
        int8 = f", int8 up to {self.int8_up_to}" if self.int8_up_to else ""
        guides = outline_guides(self.guides)
        shards = f" in {self.shards} shard{'s' * (self.shards != 1)}" if self.shards else ""
        lines = [
            f"{self.path}: {self.count:,} vector{'s' * (self.count != 1)}{shards}, {size_text(self.bytes)} on disk",
            f"  dims {', '.join(map(str, self.nesting.dims))}; {self.metric}; {self.dtype}{int8}; "
            f"ids are {self.ids}{f'; {guides}' if guides else ''}",
        ]
        if self.drift is not None:
            lines += [f"  {self.joined:,} vectors joined the partitions later, at {self.drift:.2f} times the squared "
                      "distance from the means"]  # fmt: skip
        lines += [f"  rotation: {self.rotation}"] if self.rotation else []
        lines += [f"  no full vectors: {self.codes}"] if self.codes else []
        lines += [f"  payload fields: {', '.join(self.fields)}"] if self.fields else []
        if self.model:
            lines += [f"  model: {self.model}{f', {self.run}' if self.run else ''}"]
        return "\n".join(lines)


def describe(store: Store, joined: int, drift: float | None, measured: Mapping[str, Any] | None = None) -> Description:
    """Describe the current state of ``store``; the payload fields take about 0.5 s per million payloads."""
    about, snapshot, wanted, model = store.about, store.snapshot(), store.wanted(), store.model
    return Description(
        path=store.given,
        count=snapshot.count,
        nesting=about.nesting,
        metric=about.metric,
        dtype=about.dtype,
        int8_up_to=about.int8_up_to,
        ids="strings" if snapshot.text_ids else "integers",
        segments=len(snapshot.segments),
        guides={kind: options.get("dim") for kind, options in wanted.items()},
        unguided=sum(len(segment) for segment in snapshot.segments if lacks(segment, wanted)),
        joined=joined,
        drift=drift,
        bytes=sum(path.stat().st_size for path in store.path.rglob("*") if path.is_file()),
        fields=tuple(store.fields()),
        model=title_of(model),
        run="" if isinstance(model, str) else str(model.get("run", "")),
        rotation=_outline_rotation(snapshot.rotation),
        codes=outlined(snapshot.rotation.compression, measured) if isinstance(snapshot.rotation, Coding) else "",
    )


def _outline_rotation(rotation: Rotation | Coding | None) -> str:
    if not isinstance(rotation, Rotation):
        return ""
    rows = rotation.retrofit.provenance.get("rows")
    return rotation.retrofit.rung + (f", fitted on {rows:,} vectors" if rows else "")


def lacks(segment: Segment, wanted: dict[str, Any]) -> bool:
    """Return whether a segment lacks one of the guides; that its rows joined partitions counts as having some."""
    kinds = {*segment.guides, *(("partition",) if "joined" in segment.guides else ())}
    return bool(wanted.keys() - kinds)


def outline_guides(guides: dict[str, int | None]) -> str:
    """Guides in one line.

    >>> outline_guides({"sketch": None, "partition": 64, "graph": 16})
    'sketch, partition (IVF) at 64, graph (HNSW) at 16'
    """
    names = {"partition": "partition (IVF)", "graph": "graph (HNSW)"}
    return ", ".join(names.get(kind, kind) + (f" at {dim}" if dim else "") for kind, dim in guides.items())
