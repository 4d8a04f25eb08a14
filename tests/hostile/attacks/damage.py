"""Damage to files: one random change of one file of a folder."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

KINDS = ("flip", "flip", "flip", "zero", "noise", "copy", "truncate", "extend", "delete", "swap")


def damage(folder: Path, chance: random.Random) -> tuple[Path, str] | None:
    """Change one file and return it with a description; None if the change left its bytes as they were."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path, kind = chance.choice(files), chance.choice(KINDS)
    old = path.read_bytes()
    size = len(old)
    start = chance.choice((0, chance.randrange(size), chance.randrange(min(size, 200))))   # headers are short
    length = min(chance.choice((1, 4, 8, 64, 512, 4096)), size - start)
    new, said = bytearray(old), f"{kind} {length} at {start} of {size}"
    if kind == "flip":
        new[start] ^= 1 << chance.randrange(8)
        said = f"flip {old[start]:#x} to {new[start]:#x} at {start} of {size}"
    elif kind == "zero":
        new[start : start + length] = bytes(length)
    elif kind == "noise":
        new[start : start + length] = chance.randbytes(length)
    elif kind == "copy":
        other = chance.randrange(size - length + 1)
        new[start : start + length] = old[other : other + length]
        said += f" from {other}"
    elif kind == "truncate":
        del new[start:]
    elif kind == "extend":
        new += chance.randbytes(length)
    elif kind == "swap":
        other_file = chance.choice([file for file in files if file.suffix == path.suffix])
        new = bytearray(other_file.read_bytes())
        other_file.write_bytes(old)
        said = f"swap with {other_file.relative_to(folder)}"
    if kind == "delete":
        path.unlink()
    elif new == old:
        return None
    else:
        path.write_bytes(new)
    return path, f"{path.relative_to(folder)}: {said}"


def restored(base: Path, work: Path) -> Path:
    """A new copy of ``base`` at ``work``."""
    shutil.rmtree(work, ignore_errors=True)
    return Path(shutil.copytree(base, work))
