"""A place that all machines see: a folder, or a URL of an object store, which fsspec opens."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matryo.errors import InputError, MissingExtra
from matryo.files import replacing, storage

__all__ = ["Place"]


@dataclass(frozen=True)
class Place:
    """A file or a folder at a path or a URL such as ``s3://bucket/name``."""

    url: str

    @classmethod
    def of(cls, given: Any) -> Place:
        """The place of a path or a URL; paths become absolute."""
        if isinstance(given, Place):
            return given
        text = str(given)
        return cls(text.rstrip("/") if "://" in text else os.path.abspath(text))   # noqa: PTH100 - keeps links

    def __truediv__(self, name: str) -> Place:
        return Place(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def is_local(self) -> bool:
        """Whether it is a path."""
        return "://" not in self.url

    @property
    def path(self) -> Path:
        """The path of a local place."""
        if not self.is_local:
            raise InputError("this needs a folder", got=self.url, cure="copy it to a folder first")
        return Path(self.url)

    def read(self) -> bytes | None:
        """The bytes of a file; None if there is none."""
        try:
            if self.is_local:
                with storage(self.path, "read"):
                    return self.path.read_bytes() if self.path.is_file() else None
            system, path = self._system()
            content: bytes = system.cat_file(path)
        except FileNotFoundError:
            return None
        return content

    def write(self, content: bytes) -> None:
        """Write a file, which appears whole."""
        if self.is_local:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as file:
                file.write(content)
            return
        system, path = self._system()
        system.pipe_file(path, content)   # an object store shows an object when it is complete

    def names(self) -> list[str]:
        """The names in a folder; none if it does not exist."""
        if self.is_local:
            return sorted(entry.name for entry in self.path.iterdir()) if self.path.is_dir() else []
        system, path = self._system()
        system.invalidate_cache()
        try:
            return sorted(str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in system.ls(path, detail=False))
        except FileNotFoundError:
            return []

    def remove(self) -> None:
        """Delete a file or a folder, if it exists."""
        if self.is_local:
            shutil.rmtree(self.path) if self.path.is_dir() else self.path.unlink(missing_ok=True)
            return
        system, path = self._system()
        if system.exists(path):
            system.rm(path, recursive=True)

    def fetched(self) -> Path:
        """A local path of the file or folder: itself, or a copy in this machine's temporary folder, made once."""
        if self.is_local:
            return self.path
        system, path = self._system()
        facts = "\0".join(sorted(f"{name} {info.get('size')} {info.get('ETag', info.get('mtime', ''))}"
                                 for name, info in system.find(path, detail=True).items()))  # fmt: skip
        if not facts:
            raise InputError("there must be a file or a folder at this URL", got=self.url, cure="check the URL")
        digest = hashlib.sha256(f"{self.url}\0{facts}".encode()).hexdigest()[:24]
        copies = Path(tempfile.gettempdir()) / f"matryo-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
        copies.mkdir(mode=0o700, exist_ok=True)
        target = copies / digest / self.url.rsplit("/", 1)[-1]
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=copies) as work:
                copy = Path(work) / "copy"
                system.get(path, str(copy), recursive=system.isdir(path))
                target.parent.mkdir(exist_ok=True)
                if not target.exists():   # another worker of this machine may have been faster
                    copy.rename(target)
        return target

    def _system(self) -> tuple[Any, str]:
        with MissingExtra.unless_installed("fsspec", "ray"):
            import fsspec
        try:
            system, path = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            cure = "for example pip install s3fs for s3://, gcsfs for gs://"
            raise InputError("fsspec must open this URL", got=f"{self.url}: {error}", cure=cure) from None
        return system, path
