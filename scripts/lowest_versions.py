"""Print a constraint ``package==version`` for each lowest version that pyproject.toml allows, for ``make lowest``.

The extras for working on matryo itself are excluded: nobody who uses matryo installs them.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

OURS = {"docs", "test", "dev"}


def main() -> None:
    """Print the constraints, one per line."""
    path = Path(__file__).resolve().parent.parent / "pyproject.toml"
    print("\n".join(lowest(tomllib.loads(path.read_text(encoding="utf-8"))["project"])))


def lowest(project: dict[str, object]) -> list[str]:
    """Return the constraints of a ``[project]`` table.

    >>> lowest({"dependencies": ["numpy>=1.26"], "optional-dependencies": {"text": ["matryo[train]", "torch>=2.11"]}})
    ['numpy==1.26', 'torch==2.11']
    """
    required: list[str] = [*project["dependencies"]]  # type: ignore[misc]
    for extra, requirements in project["optional-dependencies"].items():  # type: ignore[attr-defined]
        required += [] if extra in OURS else requirements
    found = {}
    for requirement in required:
        if match := re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)", requirement):
            found[match[1]] = f"{match[1]}=={match[2]}"
        elif not requirement.startswith("matryo["):
            sys.exit(f"{requirement} must state a lowest version, as in numpy>=1.26")
    return sorted(found.values())


if __name__ == "__main__":
    main()
