"""Rebuild the bundled nouns of WordNet from Debian's package of it.

::

    apt-get download wordnet-base
    python scripts/build_wordnet.py wordnet-base_*.deb --compare     # say how it differs from what is shipped
    python scripts/build_wordnet.py wordnet-base_*.deb               # replace what is shipped

Version 1:3.0-37 gives the shipped rows. Of WordNet's 82,115 nouns (a noun here is one meaning, shared by the words for
it) those are kept that were met in the texts its authors tagged, which ``cntlist.rev`` counts, so that common ones
remain; names of single persons, places and things are excluded. A gloss is kept up to its first example.
"""

from __future__ import annotations

import argparse
import gzip
import io
import re
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from matryo.data.bundled.wordnet import COLUMNS, KINDS, PATH
from matryo.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FOLDER = "./usr/share/wordnet"
FIRST_FILE = 3   # the number of noun.Tops, the first of the lexicographer files of nouns
MEMBER = 60   # bytes of a header in an ar archive, which is what a .deb is


@dataclass(frozen=True)
class Synset:
    """One line of ``data.noun``: a meaning, the words for it, and the meanings above it."""

    id: str
    file: int
    words: tuple[str, ...]
    senses: tuple[int, ...]
    """WordNet's lex_id of each word, which with the file tells its meaning."""
    above: tuple[str, ...]
    is_instance: bool
    gloss: str

    @classmethod
    def parse(cls, line: str) -> Synset:
        """wndb(5) says what a line holds."""
        fields, gloss = line.split(" | ", 1)
        id, file, _, count, *rest = fields.split()
        words = int(count, 16)
        pairs, pointers = rest[: 2 * words], rest[2 * words + 1 :]
        kinds = list(zip(pointers[::4], pointers[1::4], strict=False))
        return cls(
            id=id,
            file=int(file),
            words=tuple(pairs[::2]),
            senses=tuple(int(sense, 16) for sense in pairs[1::2]),
            above=tuple(other for kind, other in kinds if kind == "@"),
            is_instance=any(kind == "@i" for kind, _ in kinds),
            gloss=re.split(r'[;:] "|;? *$', gloss.strip(), maxsplit=1)[0].strip(),
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Choose the nouns, then compare with what is shipped or replace it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path, help="the .deb file")
    parser.add_argument("--out", type=Path, default=PATH, help="the file to write (default: the shipped one)")
    parser.add_argument("--compare", action="store_true", help="print the differences and write nothing")
    args = parser.parse_args(argv)
    data, counts = members(args.package, [f"{FOLDER}/data.noun", f"{FOLDER}/cntlist.rev"])
    table = write(choose(read(data), counts))
    if args.compare:
        shipped = set(gzip.decompress(args.out.read_bytes()).decode().splitlines())
        built = set(table.splitlines())
        print(f"shipped rows: {len(shipped)}, built too: {len(shipped & built)}, added: {len(built - shipped)}")
        return
    with replacing(args.out) as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(table.encode())


def members(package: Path, paths: Sequence[str]) -> list[str]:
    """Text files of a Debian package, whose data lie in a tar file inside an ar archive."""
    archive = package.read_bytes()
    start = len(b"!<arch>\n")
    while start < len(archive):
        name, size = archive[start : start + 16].decode().strip(), int(archive[start + 48 : start + 58])
        start += MEMBER
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(archive[start : start + size])) as tar:
                return [tar.extractfile(path).read().decode() for path in paths]   # type: ignore[union-attr]
        start += size + size % 2
    raise SystemExit(f"{package} holds no data.tar: give wordnet-base_*.deb")


def read(data: str) -> dict[str, Synset]:
    """All nouns by their id; the lines before them are the licence."""
    lines = (line for line in data.splitlines() if not line.startswith("  "))
    return {noun.id: noun for noun in map(Synset.parse, lines)}


def choose(nouns: Mapping[str, Synset], counts: str) -> list[tuple[Synset, str]]:
    """The nouns to keep, commonest first, each with the nearest one above it that is kept too ("" for none)."""
    by_sense = {
        (word.lower(), noun.file, sense): noun.id
        for noun in nouns.values()
        for word, sense in zip(noun.words, noun.senses, strict=True)
    }
    times: Counter[str] = Counter()
    for line in counts.splitlines():
        key, _, count = line.split()
        word, _, sense = key.partition("%")
        kind, file, number = sense.split(":")[:3]
        id = by_sense.get((word, int(file), int(number))) if kind == "1" else None
        if id is not None and not nouns[id].is_instance:
            times[id] += int(count)
    kept = sorted(times, key=lambda id: (-times[id], id))
    return [(nouns[id], next((up for up in ancestors(nouns, id) if up in times), "")) for id in kept]


def ancestors(nouns: Mapping[str, Synset], id: str) -> Iterator[str]:
    """The nouns above ``id``, nearest first."""
    level: Sequence[str] = nouns[id].above
    while level:
        yield from level
        level = list(dict.fromkeys(up for one in level for up in nouns[one].above))


def write(chosen: Sequence[tuple[Synset, str]]) -> str:
    """The table that ships: a header, then a noun a line."""
    lines = ["\t".join(COLUMNS)]
    for noun, above in chosen:
        words = "|".join(word.replace("_", " ") for word in noun.words)
        lines.append("\t".join((noun.id, KINDS[noun.file - FIRST_FILE], above, words, noun.gloss)))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
