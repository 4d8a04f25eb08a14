"""Find the images of each split on disk: by class folders, or by a list file; nothing is opened."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from matryo.data.images.decode import progress_bar
from matryo.data.meta import read_json, read_lines
from matryo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["IMAGE_ENDINGS", "Listing", "all_there", "is_image", "list_images"]

IMAGE_ENDINGS = frozenset(["jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm"])

_LAYOUT = "put the images in <split>/<class>/, say train/cat/1.jpg, or list them in <split>.txt"


@dataclass
class Listing:
    """The images of one split, as parallel lists: paths relative to the root, and class keys as found."""

    paths: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


def list_images(root: Path, progress: bool) -> dict[str, Listing]:
    """Every split under ``root``, by name."""
    if not root.is_dir():
        raise DataError(
            "an image folder must exist",
            got=root,
            cure=f"check the path and, in it, {_LAYOUT}",
        )
    lists = _list_files(root)
    others = [name for name in _subfolders(root) if name not in lists]
    folders = {name: classes for name in others if (classes := _class_folders(root, name, bool(lists)))}
    if not lists and not folders:
        raise DataError("an image folder must hold a split", got=f"none in {root}", cure=_LAYOUT)
    with progress_bar(sum(map(len, folders.values())), "finding images", "folder", progress) as bar:
        found = {name: _scan(root, name, classes, bar) for name, classes in folders.items()}
    found |= {name: _from_lines(root, name, lines) for name, lines in lists.items()}
    return dict(sorted(found.items()))


def is_image(name: str) -> bool:
    """Whether a file of this name is an image to read: by its ending, and not hidden."""
    return name.rpartition(".")[2].lower() in IMAGE_ENDINGS and not name.startswith(".")


def _subfolders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def _list_files(root: Path) -> dict[str, list[str]]:
    """The lines of each ``<split>.txt``; a text that does not begin with an image is about something else."""
    lists = {}
    for path in sorted(root.glob("*.txt")):
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            begins_with = next((line for line in file if line.strip()), "")
        if is_image(_entry(begins_with)[0]) and not path.name.startswith("."):
            lists[path.stem] = read_lines(path)
    return lists


def _class_folders(root: Path, split: str, listed: bool) -> list[str]:
    """The class folders of a split folder; none if list files say what to read and this holds only images."""
    with os.scandir(root / split) as entries:
        loose = next((entry.name for entry in entries if is_image(entry.name) and entry.is_file()), None)
    if loose is not None:
        if listed:
            return []
        raise DataError(
            "a split folder holds class folders, not images",
            got=f"{split}/{loose}",
            cure=f"if {split} is a class, move it to train/{split}; if it is a split, sort its images into"
            f" class folders or list them in {split}.txt",
        )
    classes = _subfolders(root / split)
    if not classes and not listed:
        raise DataError("a split folder must hold class folders", got=f"none in {split}", cure=_LAYOUT)
    return classes


def _scan(root: Path, split: str, folders: list[str], bar: Any) -> Listing:
    """The images in the class folders of a split, each under its own name or that in ``class_map.json``."""
    mapped = read_json(root / split / "class_map.json", dict, default={})
    found = Listing()
    for folder in folders:
        key = mapped.get(folder, folder)
        bar.update()
        if key is None:
            continue
        paths = sorted(_files(root / split / folder, f"{split}/{folder}"))
        if not paths:
            raise DataError(
                "a class folder must hold an image",
                got=f"none in {split}/{folder}",
                cure="add images, remove the folder, or skip it with null in class_map.json",
            )
        found.paths += paths
        found.keys += [str(key)] * len(paths)
    if not found.paths:
        raise DataError(
            f"{split}/class_map.json must leave a class",
            got="null for every folder",
            cure="map a folder to a class, or remove the file",
        )
    return found


def _files(folder: Path | str, prefix: str) -> list[str]:
    """All images at any depth under ``folder``, as ``prefix``/…"""
    found: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_image(entry.name) and not entry.is_dir():
                found.append(f"{prefix}/{entry.name}")
            elif not entry.name.startswith(".") and entry.is_dir():
                found += _files(entry.path, f"{prefix}/{entry.name}")
    return found


def _from_lines(root: Path, split: str, lines: list[str]) -> Listing:
    """The images that ``<split>.txt`` lists; their class is their folder's, unless the line says another."""
    found = Listing()
    for number, line in enumerate(lines, 1):
        path, key = _entry(line)
        key = key or path.rpartition("/")[0].rpartition("/")[2]
        if not is_image(path.rpartition("/")[2]) or path.startswith("/") or not key:
            raise DataError(
                f"{split}.txt: a line is a path relative to the image folder, and perhaps a class",
                got=f"{line!r}, entry {number}",
                cure="write folder/image.jpg, or image.jpg, a tab and the class",
            )
        found.paths.append(path)
        found.keys.append(key)
    all_there(root, f"{split}.txt", found.paths)
    return found


def _entry(line: str) -> tuple[str, str]:
    """The path and the class ("" if none) of a line; a class after a tab may contain spaces."""
    line = line.strip().removeprefix("./")
    if "\t" in line:
        path, _, key = line.partition("\t")
    elif is_image(line):
        path, key = line, ""
    else:
        path, _, key = line.rpartition(" ")
    return path.strip(), key.strip()


def all_there(
    root: Path,
    source: str,
    paths: Sequence[str],
    cure: str = "correct the list; its paths are relative to the folder it lies in",
) -> None:
    """Refuse ``paths``, relative to ``root`` and listed in the file ``source``, of which one is not there."""
    # One directory read for each folder is far quicker than one stat for each of millions of files.
    present: dict[str, set[str]] = {}
    missing = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder not in present:
            try:
                with os.scandir(root / folder) as entries:
                    present[folder] = {entry.name for entry in entries}
            except OSError:
                present[folder] = set()
        if name not in present[folder]:
            missing.append(path)
    if missing:
        raise DataError(
            f"{source}: every listed image must exist",
            got=f"{len(missing):,} of {len(paths):,} missing, the first {missing[0]}",
            cure=cure,
        )
