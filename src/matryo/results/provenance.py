"""The provenance of a row: command, commit, hardware and package versions of this process."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from matryo import __version__
from matryo.arguments import checked
from matryo.errors import InputError
from matryo.results.by_dim import infer_role
from matryo.results.rows import Row

_PACKAGES = ("numpy", "scipy", "torch", "triton", "timm", "transformers", "tokenizers",
             "sentence-transformers", "pillow", "faiss-cpu")


@checked
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
        versions=versions(),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        role=role or infer_role(figures),
    )


@checked
def command_line(argv: list[str]) -> str:
    """The command as others would type it into a shell: no folder outside the project appears in a stored row.

    >>> command_line(["/somewhere/bin/matryo", "train", "demo", "--data", "/mnt/pictures", "--optim.lr=0.1"])
    'matryo train demo --data DIR --optim.lr=0.1'
    >>> command_line(["matryo", "plan", "postgresql://ann:secret@db/shop?table=docs"])   # nor does a password
    "matryo plan 'postgresql://ann@db/shop?table=docs'"
    """
    if not argv:
        raise InputError("a command line must name its program", got="no words", cure="pass sys.argv")
    program = Path(argv[0])
    name = ["python", str(program)] if program.suffix == ".py" and not program.is_absolute() else [program.name]
    words = [*(["matryo"] if program.name == "__main__.py" else name), *argv[1:]]
    hidden = ["DIR" if before == "--data" else word for before, word in zip(["", *words[:-1]], words, strict=True)]
    hidden = [re.sub(r"^--data=.*", "--data=DIR", word) for word in hidden]
    hidden = [re.sub(r"(://[^/?#:@]*):[^/?#]*@", r"\1@", word) for word in hidden]
    hidden = [re.sub(r"(?i)([?&](?:\w*passw\w*|api_?key|token|secret)=)[^&#]*", r"\1***", word) for word in hidden]
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


def versions() -> dict[str, str]:
    """Return the version of each installed package that may change a figure, and the instruction set of the core."""
    found = {"matryo": __version__, "python": platform.python_version()}
    if (core := sys.modules.get("matryo._core")) is not None:
        found["core"] = core.ISA
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _processor() -> str:
    name = platform.processor() or platform.machine()
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        name = re.search(r"model name\s*:\s*(.+)", info).group(1)  # type: ignore[union-attr]
    except (OSError, AttributeError):
        pass
    return f"{os.cpu_count()} × {name}"
