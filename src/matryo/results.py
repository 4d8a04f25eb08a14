"""Stored results: rows of figures with the command, commit, hardware and versions that gave them.

Every published number is a figure of a row, and a row records enough to measure it again.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from matryo import __version__
from matryo.errors import InputError
from matryo.files import alone_with, replacing, storage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "ROLES",
    "Result",
    "Row",
    "append_rows",
    "check_may_append",
    "command_line",
    "figures_by_dim",
    "holds_rows",
    "infer_role",
    "is_share",
    "read_rows",
    "stamp",
]

_PACKAGES = ("numpy", "numba", "scipy", "torch", "triton", "timm", "transformers", "tokenizers",
             "sentence-transformers", "pillow", "faiss-cpu")


class Result:
    """What a protocol found: a frozen dataclass of names, numbers and tuples of these, so that it is JSON as it is.

    A subclass names its ``kind``, which is the kind of the rows it is stored in. Figures by dim are tuples in the
    order of its ``dims``.

    >>> @dataclass(frozen=True)
    ... class Height(Result):
    ...     kind: ClassVar[str] = "height"
    ...     dims: tuple[int, ...]
    ...     metres: tuple[tuple[float, ...], ...]
    >>> Height((8, 16), ((1.5,), (2.0,))).to_figures()
    {'dims': (8, 16), 'metres': ((1.5,), (2.0,))}
    >>> Height.from_figures({"dims": [8, 16], "metres": [[1.5], [2.0]]})
    Height(dims=(8, 16), metres=((1.5,), (2.0,)))
    """

    kind: ClassVar[str]

    def to_figures(self) -> dict[str, Any]:
        """As plain JSON values, for the figures of a stored row."""
        return {part.name: getattr(self, part.name) for part in fields(cast("Any", self))}

    @classmethod
    def from_figures(cls, figures: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_figures`: JSON's lists are tuples again."""
        return cls(**{name: _tuples(value) for name, value in figures.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


ROLES = ("nested", "fixed", "post hoc")

# Figures indexed [axis][dims], by kind: the list that labels the outer axis, and the title of one of its rows.
_OUTER_AXES = {
    "few-shot": ("shots", "{metric} with {label} per class"),
    "stream": ("groups", "{metric} of {label}"),
    "robustness": ("splits", "{metric} on {label}"),
}
_PAIR_METRICS = {"hit": "hit", "recall": "recall", "ndcg": "nDCG", "mrr": "MRR"}
_SPREAD = re.compile(r"(^|_)(sd|margin)$")
_SHARE = re.compile(
    r"(^|[ _])(top\d+|(map|p|knn|recall|hit|ndcg|mrr)@\d+|\d+-nn|map10|"
    r"accuracy|single|fine|rejected|first_right|auc|oracle|head)"
    r"( (on|of|with) .*| .* → .*)?$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Row:
    """One measurement with its provenance."""

    kind: str
    """What was measured ("evaluate", "train", "step-cost", …)."""
    subject: str
    """What it was measured on ("tiny-imagenet-rn18 separate")."""
    figures: dict[str, Any]
    seed: int | None
    command: str
    commit: str
    hardware: str
    versions: dict[str, str]
    when: str = field(default="")
    role: str = ""
    """One of ROLES: trained at many dims, trained at one dim, made from another model's vectors; "" if unknown."""

    def by_dim(self) -> dict[str, dict[int, float]]:
        """Return the metrics that have a value per dim, as {title: {dim: value}}; empty where there are none.

        Titles are the names stored in ``figures``, with the split, the direction or the shots where there are
        several: "map@10", "top1 on val", "hit@10 images → texts", "accuracy with 5 per class". Metrics without a value
        at some dim lack that dim. Standard deviations and margins are not metrics.
        """
        return figures_by_dim(self.kind, self.figures)


def figures_by_dim(kind: str, figures: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Return ``figures`` of a row of ``kind`` as {title: {dim: value}}; see :meth:`Row.by_dim`.

    >>> figures_by_dim("probe", {"dims": [8, 16], "top1": [0.5, 0.75], "model": "mine"})
    {'top1': {8: 0.5, 16: 0.75}}
    >>> figures_by_dim("train", {"top1": {"val": {"8": 0.5}}, "seconds": 3.0})
    {'top1 on val': {8: 0.5}}
    """
    dims = figures.get("dims")
    if isinstance(dims, dict):   # evaluate: {dim: {metric: value}}
        columns: dict[str, dict[int, float]] = {}
        for dim, metrics in dims.items():
            for name, value in metrics.items():
                if type(value) in (int, float):
                    columns.setdefault(name, {})[int(dim)] = value
        return columns
    if isinstance(dims, list | tuple):
        return _by_listed_dims(kind, figures, dims)
    return {   # a training: {metric: {split: {dim: value}}}
        f"{metric} on {split}": {int(dim): value for dim, value in values.items()}
        for metric, splits in figures.items()
        if isinstance(splits, dict)
        for split, values in splits.items()
        if isinstance(values, dict) and values and all(dim.isdecimal() for dim in values)
    }


def _by_listed_dims(kind: str, figures: Mapping[str, Any], dims: Sequence[int]) -> dict[str, dict[int, float]]:
    columns: dict[str, dict[int, float]] = {}

    def add(title: str, values: Any) -> None:
        # Metrics are floats; lists of integers count something else and may be as long as dims by chance.
        listed = isinstance(values, list | tuple) and len(values) == len(dims)
        if listed and all(type(value) is float or value is None for value in values):
            present = {dim: value for dim, value in zip(dims, values, strict=True) if value is not None}
            columns.update({title: present} if present else {})

    if kind == "pairs":   # metric: [direction][dim][k]
        for direction, title in enumerate((" → ".join(figures["sides"]), " → ".join(figures["sides"][::-1]))):
            for key, name in _PAIR_METRICS.items():
                for place, k in enumerate(figures["ks"] if key in figures else ()):
                    add(f"{name}@{k} {title}", [at_dim[place] for at_dim in figures[key][direction]])
        return columns
    axis, pattern = _OUTER_AXES.get(kind, ("", ""))
    for name, values in figures.items():
        if _SPREAD.search(name) or (kind == "cascade" and name != "single"):   # whose other lists are by threshold
            continue
        if isinstance(values, dict):   # text-finetune: {dataset: {metric: [dims]}}
            for metric, inner in values.items():
                add(f"{metric} on {name}", inner)
        elif axis and isinstance(values, list | tuple) and values and isinstance(values[0], list | tuple):
            for label, inner in zip(figures[axis], values, strict=True):
                add(pattern.format(metric=name, label=label), inner)
        elif name != axis and name not in ("edges", "losses", "oracle" if kind == "robustness" else ""):
            add(name, values)
    return columns


def is_share(title: str) -> bool:
    """Whether the metric of :meth:`Row.by_dim` is a fraction of 1, to be shown in percent.

    >>> [is_share(title) for title in ("map@10", "top1 on val", "masked_loss on val", "mflops", "spearman")]
    [True, True, False, False, False]
    """
    return _SHARE.search(title) is not None


def infer_role(figures: Mapping[str, Any]) -> str:
    """Return the role of a row that was stored without one, as far as its figures show it.

    Baselines are named "model + method". An evaluation marks the dims trained at, and a training measures only those.
    Other rows do not record the nesting, so their role is unknown.
    """
    if " + " in str(figures.get("model", "")):
        return "post hoc"
    dims = figures.get("dims")
    if isinstance(dims, dict):
        trained = sum(isinstance(metrics, dict) and bool(metrics.get("trained")) for metrics in dims.values())
    elif dims is None and (columns := figures_by_dim("train", figures)):
        trained = max(map(len, columns.values()))
    else:
        return ""
    return "nested" if trained > 1 else "fixed"


def stamp(
    kind: str, subject: str, figures: dict[str, Any], *, seed: int | None, hardware: str = "", role: str = ""
) -> Row:
    """Return a row of ``figures`` with the provenance of this process; ``role`` is inferred where possible."""
    return Row(
        kind=kind,
        subject=subject,
        figures=figures,
        seed=seed,
        command=command_line(sys.argv),
        commit=_commit(),
        hardware=hardware or _processor(),
        versions=_versions(),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        role=role or infer_role(figures),
    )


def append_rows(path: Path, rows: list[Row]) -> None:
    """Add ``rows`` to a JSON-lines file, which is replaced whole so that no reader sees half a row.

    Several processes may add to one file.
    """
    path = Path(path)
    check_may_append(path)
    lines = [(json.dumps(asdict(row), ensure_ascii=False) + "\n").encode() for row in rows]
    with alone_with(path):
        with storage(path):
            old = path.read_bytes()
        with replacing(path) as file:
            file.write(old)
            file.writelines(lines)


def holds_rows(path: Path) -> bool:
    """Whether the first line of the file ``path`` is a result row."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            Row(**json.loads(file.readline()))
    except (OSError, ValueError, TypeError):
        return False
    return True


def check_may_append(path: Path) -> None:
    """Raise unless rows may be added to ``path``: it does not exist, is empty, or holds result rows."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder", cure="choose the name of a file")
    if path.is_file() and path.stat().st_size and not holds_rows(path):
        raise InputError(f"{path} holds something other than result rows", cure="choose another name")


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSON-lines file, in order."""
    rows = []
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("result rows must be in a file", got=f"{path}: {error}", cure="check the path") from error
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            values = json.loads(line)
            row = Row(**values)
            rows.append(row if "role" in values else replace(row, role=infer_role(row.figures)))
        except (AttributeError, TypeError, ValueError) as error:
            names = ", ".join(part.name for part in fields(Row))
            raise InputError(
                f"each line must be a result row with the fields {names}",
                got=f"{path}, line {number}: {error}",
                cure="delete that line or restore the file",
            ) from error
    return rows


def command_line(argv: list[str]) -> str:
    """The command as others would type it into a shell: no folder outside the project appears in a stored row.

    >>> command_line(["/somewhere/bin/matryo", "train", "demo", "--data", "/mnt/pictures", "--optim.lr=0.1"])
    'matryo train demo --data DIR --optim.lr=0.1'
    """
    program = Path(argv[0])
    name = ["python", str(program)] if program.suffix == ".py" and not program.is_absolute() else [program.name]
    words = [*(["matryo"] if program.name == "__main__.py" else name), *argv[1:]]
    hidden = ["DIR" if before == "--data" else word for before, word in zip(["", *words[:-1]], words, strict=True)]
    hidden = [re.sub(r"^--data=.*", "--data=DIR", word) for word in hidden]
    # Behind a colon too, as in bert:/somewhere/model; but an address, https://…, is no folder.
    return shlex.join(re.sub(r"(^|[=:])/(?!/)(?:.*/)?([^/]+)/?$", r"\1\2", word) for word in hidden)


def _commit() -> str:
    # Whoever launches a copy (a container, a batch job) knows better than a stale .git in it; a checkout knows itself.
    if told := os.environ.get("MATRYO_COMMIT"):
        return told
    here = Path(__file__).resolve().parent
    git = ["git", "-C", str(here)]
    try:
        # An installed package may lie inside somebody's own repository, which does not track it.
        ours = [*git, "ls-files", "--error-unmatch", Path(__file__).name]
        subprocess.run(ours, capture_output=True, check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip()[:12] + ("+changes" if changed.stdout.strip() else "")


def _versions() -> dict[str, str]:
    found = {"matryo": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    name = platform.processor() or platform.machine()
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = re.search(r"model name\s*:\s*(.+)", info).group(1)  # type: ignore[union-attr]
    except (OSError, AttributeError):
        pass
    return f"{os.cpu_count()} × {name}"
