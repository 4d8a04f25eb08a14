"""One schema for every stored result: what ran, on what, with which seed, and the figures it gave.

A published number is the figure of a row, and a row says enough to run it again.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from matryo import __version__
from matryo.errors import InputError
from matryo.files import alone_with, replacing, storage

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Result", "Row", "append_rows", "check_may_append", "command_line", "holds_rows", "read_rows", "stamp"]

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


def stamp(kind: str, subject: str, figures: dict[str, Any], *, seed: int | None, hardware: str = "") -> Row:
    """A row of ``figures`` with the provenance of this very process."""
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
            rows.append(Row(**json.loads(line)))
        except (ValueError, TypeError) as error:
            known = ", ".join(f.name for f in fields(Row))
            raise InputError(
                f"each line must be a result row with the fields {known}",
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
