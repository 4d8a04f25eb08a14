"""The base class of protocols' results, and the one function that shows any of them as a table."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from matryo.arguments import checked
from matryo.errors import InputError, MissingExtra
from matryo.tables import Block, Metric, percent, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class Result:
    """A protocol's result: a frozen dataclass of names, numbers and tuples of these, so that it can be stored as JSON.

    A subclass has a ``kind``, which is the kind of its rows, and figures by dim as tuples in the order of its ``dims``.
    ``titles`` lists the columns of its table. A result that is not a plain list of metrics by dim overrides
    :meth:`blocks`.

    >>> @dataclass(frozen=True)
    ... class Height(SplitResult):
    ...     kind: ClassVar[str] = "height"
    ...     titles: ClassVar[Mapping[str, str]] = {"share": "share, %"}
    ...     dims: tuple[int, ...]
    ...     share: tuple[float, ...]
    >>> height = Height("mine", "trees", "test", (8, 16), (0.25, 0.5))
    >>> print(height)
    mine, trees / test: height
    dim share, %
      8     25.0
     16     50.0
    >>> Height.from_figures({**height.to_figures(), "dims": [8, 16]}) == height
    True
    """

    kind: ClassVar[str]
    titles: ClassVar[Mapping[str, str]] = {}
    """The column title of each field that holds a metric by dim."""
    texts: ClassVar[Mapping[str, Callable[[float | None], str]]] = {}
    """How the values of a field are written, where not in percent."""
    shown: ClassVar[tuple[str, ...]] = ()
    """The titles that a table shows by default; empty means all."""

    def to_figures(self) -> dict[str, Any]:
        """Return the fields as plain JSON values, for the figures of a stored row."""
        return {part.name: getattr(self, part.name) for part in fields(cast("Any", self))}

    @classmethod
    def from_figures(cls, figures: Mapping[str, Any]) -> Self:
        """Return the result that :meth:`to_figures` described; JSON's lists become tuples again."""
        return cls(**{name: as_tuples(value) for name, value in figures.items()})

    @property
    def where(self) -> str:
        """The dataset and split, as headings name them."""
        return " / ".join(filter(None, (getattr(self, name, "") for name in ("dataset", "split"))))

    @property
    def about(self) -> str:
        """A description of the measurement, for the heading of a table."""
        return self.kind

    def metrics(self) -> list[Metric]:
        """Return the metrics by dim that ``titles`` lists."""
        dims = getattr(self, "dims", ())
        return [
            Metric(title, dict(zip(dims, getattr(self, name), strict=True)), self.texts.get(name, percent))
            for name, title in self.titles.items()
        ]

    def blocks(self) -> list[Block]:
        """Return this result's part of a table; several where it has several tables."""
        return [Block(getattr(self, "model", ""), self.where, self.about, self.metrics(), self.shown)]

    def __str__(self) -> str:
        return table(self)

    def _repr_html_(self) -> str:
        return render(self.blocks(), style="html")

    def to_frame(self) -> Any:
        """Return all metrics as a pandas DataFrame: a row per dim, a column per metric, fractions not in percent."""
        with MissingExtra.unless_installed("pandas", "frames"):
            import pandas
        blocks = self.blocks()
        columns = {f"{one.title} {block.name}".strip(): one.values for block in blocks for one in block.metrics}
        return pandas.DataFrame(columns).rename_axis(blocks[0].rows)


@dataclass(frozen=True)
class SplitResult(Result):
    """A result of one model on one split of a dataset."""

    model: str
    dataset: str
    split: str


@checked
def table(
    results: Result | Iterable[Result | tuple[str, Result]],
    *,
    show: Sequence[str] | None = None,
    markdown: bool = False,
    width: int = 100,
) -> str:
    """Return one result, or several of any protocols, as tables: one per split and protocol, models side by side.

    ``show`` selects metrics by title ("1-NN", "mAP@10", …); an empty list shows all, None the usual ones. A tuple
    (name, result) shows the result under another name. Text wider than ``width`` continues below.
    """
    given = [results] if isinstance(results, Result) else results
    blocks = [
        block if name is None else replace(block, model=name)
        for name, result in (one if isinstance(one, tuple) else (None, one) for one in given)
        for block in result.blocks()
    ]
    return render(blocks, show=show, style="markdown" if markdown else "text", width=width)


def as_tuples(value: Any) -> Any:
    """Return ``value`` with lists at any depth as tuples."""
    try:
        return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else value
    except RecursionError:
        raise InputError("a value must be nested less deep", got="more levels", cure="store it as text") from None
