"""Find the images of each split on disk, by class folders or list files, without opening them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matryo.data.images.decode import progress_bar
from matryo.data.meta import read_json, read_lines
from matryo.errors import DataError
from matryo.files import is_below

if TYPE_CHECKING:
    from collections.abc import Sequence

IMAGE_ENDINGS = frozenset(["jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm"])

_LAYOUT = "put the images in <split>/<class>/, for example train/cat/1.jpg, or list them in <split>.txt"


@dataclass
class Listing:
    """The images of one split as parallel lists: paths relative to the root, and their class folders."""

    paths: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


def list_images(root: Path, progress: bool) -> dict[str, Listing]:
    """Return the images of every split under ``root``, by name."""
    if not root.is_dir():
        raise DataError(
            "an image folder must exist",
            got=root,
            cure=f"check the path; in it, {_LAYOUT}",
        )
    lists = _list_files(root)
    unlisted = [name for name in _subfolders(root) if name not in lists]
    folders = {name: classes for name in unlisted if (classes := _class_folders(root, name, bool(lists)))}
    if not lists and not folders:
        raise DataError("an image folder must hold a split", got=f"none in {root}", cure=_LAYOUT)
    with progress_bar(sum(map(len, folders.values())), "finding images", "folder", progress) as bar:
        splits = {name: _scan(root, name, classes, bar) for name, classes in folders.items()}
    splits |= {name: _from_lines(root, name, lines) for name, lines in lists.items()}
    return dict(sorted(splits.items()))


def read_file(path: str) -> bytes:
    """Return the bytes of a file with as few calls of the system as possible; many threads share its locks."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        size = os.fstat(handle).st_size
        data = os.read(handle, size)
        while len(data) < size and (more := os.read(handle, size - len(data))):
            data += more
        return data
    finally:
        os.close(handle)


def is_image(name: str) -> bool:
    """Return whether a file name has the ending of an image and is not hidden."""
    return name.rpartition(".")[2].lower() in IMAGE_ENDINGS and not name.startswith(".")


def _subfolders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def _list_files(root: Path) -> dict[str, list[str]]:
    """Return the lines of each ``<split>.txt``; a text file whose first line is not an image is ignored."""
    lists = {}
    for path in sorted(root.glob("*.txt")):
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            first_line = next((line for line in file if line.strip()), "")
        if is_image(_entry(first_line)[0].rpartition("/")[2]) and not path.name.startswith("."):
            lists[path.stem] = read_lines(path)
    return lists


def _class_folders(root: Path, split: str, listed: bool) -> list[str]:
    """Return the class folders of a split folder; none if it holds images that list files refer to."""
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
    """List the images in the class folders of a split; ``class_map.json`` may rename the classes."""
    mapped = read_json(root / split / "class_map.json", dict, default={})
    listing = Listing()
    for folder in folders:
        key = mapped.get(folder, folder)
        bar.update()
        if key is None:
            continue
        paths = sorted(images_under(root / split / folder, f"{split}/{folder}/"))
        if not paths:
            raise DataError(
                "a class folder must hold an image",
                got=f"none in {split}/{folder}",
                cure="add images, remove the folder, or skip it with null in class_map.json",
            )
        listing.paths += paths
        listing.keys += [str(key)] * len(paths)
    if not listing.paths:
        raise DataError(
            f"{split}/class_map.json must keep at least one class",
            got="null for every folder",
            cure="map a folder to a class, or remove the file",
        )
    return listing


def images_under(folder: Path | str, prefix: str, above: tuple[tuple[int, int], ...] = ()) -> list[str]:
    """Return the paths of all images at any depth under ``folder``, relative to it and after ``prefix``.

    Links are followed; ``above`` are the folders that contain this one, by which a loop of links is recognised.
    """
    paths: list[str] = []
    place = Path(folder).stat()
    this = (place.st_dev, place.st_ino)
    if this in above:
        raise DataError("a folder of images must not contain itself", got=f"the link {folder}", cure="remove it")
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_image(entry.name) and not entry.is_dir():
                paths.append(f"{prefix}{entry.name}")
            elif not entry.name.startswith(".") and entry.is_dir():
                paths += images_under(entry.path, f"{prefix}{entry.name}/", (*above, this))
    return paths


def _from_lines(root: Path, split: str, lines: list[str]) -> Listing:
    """List the images in ``<split>.txt``; the class is given in the line, or else is the folder of the image."""
    listing = Listing()
    for number, line in enumerate(lines, 1):
        path, key = _entry(line)
        key = key or path.rpartition("/")[0].rpartition("/")[2]
        if not is_image(path.rpartition("/")[2]) or not is_below(path) or not key:
            raise DataError(
                f"{split}.txt: a line must be a path below the image folder, optionally with a class",
                got=f"{line!r}, entry {number}",
                cure="write folder/image.jpg, or image.jpg, a tab and the class" if is_below(path)
                else "move or link the images into the image folder, and write folder/image.jpg",
            )  # fmt: skip
        listing.paths.append(path)
        listing.keys.append(key)
    check_present(root, f"{split}.txt", listing.paths)
    return listing


def _entry(line: str) -> tuple[str, str]:
    """Split a line into path and class ("" if none). A class after a tab may contain spaces."""
    line = line.strip().removeprefix("./")
    if "\t" in line:
        path, _, key = line.partition("\t")
    elif is_image(line.rpartition("/")[2]):
        path, key = line, ""
    else:
        path, _, key = line.rpartition(" ")
    return path.strip(), key.strip()


def check_present(
    root: Path,
    source: str,
    paths: Sequence[str],
    cure: str = "correct the list; its paths are relative to the folder that holds it",
) -> None:
    """Raise if one of ``paths``, relative to ``root`` and listed in the file ``source``, does not exist."""
    # Listing each folder once is much faster than one stat call per file for millions of files.
    present: dict[str, set[str]] = {}
    missing = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder not in present:
            try:
                with os.scandir(root / folder) as entries:
                    present[folder] = {entry.name for entry in entries}
            except (OSError, ValueError):   # ValueError: a NUL in the name
                present[folder] = set()
        if name not in present[folder]:
            missing.append(path)
    if missing:
        raise DataError(
            f"{source}: every listed image must exist",
            got=f"{len(missing):,} of {len(paths):,} missing, the first {missing[0]}",
            cure=cure,
        )
