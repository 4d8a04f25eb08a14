"""Result rows: one measurement each, with its provenance, in files of JSON lines."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from matryo.arguments import checked
from matryo.errors import InputError
from matryo.files import alone_with, check_is_file, parse_json, replacing, storage
from matryo.results.by_dim import figures_by_dim, infer_role

ROLES = ("nested", "fixed", "post hoc")
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("kind", "subject", "command", "commit", "hardware", "when", "role"), str),
    **dict.fromkeys(("figures", "versions"), dict), "seed": int | None,
}  # fmt: skip


@checked
@dataclass(frozen=True)
class Row:
    """One measurement with its provenance."""

    kind: str
    """The kind of measurement ("evaluate", "train", "step-cost", …)."""
    subject: str
    """The model and data ("tiny-imagenet-rn18 separate")."""
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


@checked
def append_rows(path: Path, rows: list[Row]) -> None:
    """Add ``rows`` to a JSON-lines file, which is replaced whole so that no reader sees half a row.

    Several processes may add to one file.
    """
    path = Path(path)
    check_may_append(path)
    with alone_with(path):
        with storage(path):
            old = path.read_bytes()
        _write(path, old, rows)


@checked
def write_rows(path: Path, rows: list[Row]) -> None:
    """Write ``rows`` to a JSON-lines file. If it exists, its content is replaced in one step."""
    _write(Path(path), b"", rows)


def _write(path: Path, old: bytes, rows: list[Row]) -> None:
    lines = [(json.dumps(asdict(row), ensure_ascii=False) + "\n").encode() for row in rows]
    with replacing(path) as file:
        file.write(old)
        file.writelines(lines)


def _checked(row: Row) -> Row:
    """Return ``row``, or raise a TypeError if a field has another type than measurements have."""
    for name, kind in _TYPES.items():
        if not isinstance(value := getattr(row, name), kind) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r:.40}")
    return row


@checked
def holds_rows(path: Path) -> bool:
    """Whether the first line of the file ``path`` is a result row."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            _checked(Row(**parse_json(file.readline())))
    except (OSError, ValueError, TypeError):
        return False
    return True


@checked
def check_may_append(path: Path) -> None:
    """Raise unless rows may be added to ``path``: it does not exist, is empty, or holds result rows."""
    path = Path(path)
    check_is_file(path)
    if path.is_file() and path.stat().st_size and not holds_rows(path):
        raise InputError(f"{path} holds something other than result rows", cure="choose another name")


@checked
def read_rows(path: Path) -> list[Row]:
    """The rows of a JSON-lines file, in order."""
    rows = []
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("result rows must be in a file", got=f"{path}: {error}", cure="check the path") from error
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        try:
            values = parse_json(line)
            row = _checked(Row(**values))
            rows.append(row if "role" in values else replace(row, role=infer_role(row.figures)))
        except (AttributeError, TypeError, ValueError) as error:
            names = ", ".join(part.name for part in fields(Row))
            raise InputError(
                f"each line must be a result row with the fields {names}",
                got=f"{path}, line {number}: {error}",
                cure="delete that line or restore the file",
            ) from error
    return rows
