"""The picture of docs/losses.md: how one sweep over the blocks serves every dim, forward and backward.

Drawn by ``python scripts/make_docs.py --figures``.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from matryo.report.style import COLOURS

WIDTH, HEIGHT = 520, 616
BLOCKS = ("r1", "r3", "r6", "r9")   # one colour a block, darker as the dim grows
COLUMNS, TILE, PITCH = 56, 64, 122   # where the first tile begins, its side, and how far the next is
SUBSCRIPTS = "₁₂₃₄"
ALT = "Scores are running sums over blocks, read at each block's end; pulls are summed from the last dim back."


def write(docs: Path) -> None:
    """Write the picture into ``docs``."""
    (docs / "losses.svg").write_text(picture(), encoding="utf-8")


def picture() -> str:
    """The whole picture as SVG, in the colours of the report, for light and dark mode."""
    parts = [f"<title>{escape(ALT)}</title>", rect(0, 0, WIDTH, HEIGHT, "paper"), *forward(44), *backward(322)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    return "\n".join([head, style(), *parts, "</svg>", ""])


def forward(top: float) -> list[str]:
    """Tiles of scores, each the one before plus a product; a log-sum-exp below each."""
    parts = [text(20, top - 16, "Forward: one product, read at the end of each block", "title")]
    for j, name in enumerate(BLOCKS):
        x, y, sub = COLUMNS + j * PITCH, top + 46, SUBSCRIPTS[j]
        parts += [rect(x, top + 6, TILE, 12, name), text(x + TILE / 2, top + 34, f"x{sub} · y{sub}ᵀ", "middle")]
        parts += tile(x, y, BLOCKS[: j + 1], "left")
        parts += [text(x + TILE / 2, y + TILE + 18, f"scores s{sub}", "middle")]
        parts += [arrow(x + TILE / 2, y + TILE + 26, x + TILE / 2, y + TILE + 44)]
        parts += [text(x + TILE / 2, y + TILE + 60, "log-sum-exp", "middle"),
                  text(x + TILE / 2, y + TILE + 77, f"at dim m{sub}", "middle soft")]  # fmt: skip
        if j:
            parts += [arrow(x - PITCH + TILE + 6, y + TILE / 2, x - 8, y + TILE / 2),
                      text(x - (PITCH - TILE) / 2, y + TILE / 2 - 8, "+", "middle")]  # fmt: skip
    said = "The tile grows in registers. No scores are written."
    return [*parts, text(20, top + 214, said, "soft")]


def backward(top: float) -> list[str]:
    """Tiles of pulls, each summed with all later ones; the gradient of a block below each."""
    parts = [text(20, top - 16, "Backward: the scores again, summed from the other end", "title")]
    for j, name in enumerate(BLOCKS):
        x, y, sub = COLUMNS + j * PITCH, top + 46, SUBSCRIPTS[j]
        parts += [text(x + TILE / 2, top + 12, f"pull p{sub}", "middle"),
                  text(x + TILE / 2, top + 29, "softmax − target", "middle small soft")]  # fmt: skip
        parts += tile(x, y, BLOCKS[j:], "right")
        summed = f"P{sub} = p{sub}" + ("" if j == len(BLOCKS) - 1 else f" + P{SUBSCRIPTS[j + 1]}")
        parts += [text(x + TILE / 2, y + TILE + 18, summed, "middle")]
        parts += [arrow(x + TILE / 2, y + TILE + 26, x + TILE / 2, y + TILE + 44)]
        parts += [text(x + TILE / 2, y + TILE + 60, f"∂x{sub} += P{sub} y{sub}", "middle"),
                  text(x + TILE / 2, y + TILE + 78, f"∂y{sub} += P{sub}ᵀ x{sub}", "middle"),
                  rect(x, y + TILE + 87, TILE, 12, name)]  # fmt: skip
        if j:
            parts += [arrow(x - 6, y + TILE / 2, x - PITCH + TILE + 8, y + TILE / 2),
                      text(x - (PITCH - TILE) / 2, y + TILE / 2 - 8, "+", "middle")]  # fmt: skip
    said = (
        "Summed pulls are written for some columns at a time.",
        "Small dims go the way of attention: a tile stays,",
        "others pass by, and not even pulls are written.",
    )
    return [*parts, *(text(20, top + 238 + 19 * line, one, "soft") for line, one in enumerate(said))]


def tile(x: float, y: float, inside: Sequence[str], side: str) -> list[str]:
    """A tile of rows × columns, with a band for each block or dim that is summed in it."""
    band = TILE / len(BLOCKS)
    start = x if side == "left" else x + TILE - band * len(inside)
    bands = [rect(start + place * band, y, band, TILE, name) for place, name in enumerate(inside)]
    return [*bands, f'<rect class="frame" x="{x:g}" y="{y:g}" width="{TILE}" height="{TILE}"/>']


def rect(x: float, y: float, width: float, height: float, name: str) -> str:
    """A filled rectangle."""
    return f'<rect class="{name}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def text(x: float, y: float, said: str, kind: str = "") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(said)}</text>'


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """A straight arrow, with its head at the end."""
    right, down = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
    back = [(to_x - 6 * right + 4 * down * turn, to_y - 6 * down + 4 * right * turn) for turn in (1, -1)]
    head = " ".join(f"L{a:g} {b:g}" for a, b in ((to_x, to_y), back[1]))
    return f'<path class="arrow" d="M{x:g} {y:g} L{to_x:g} {to_y:g} M{back[0][0]:g} {back[0][1]:g} {head}"/>'


def style() -> str:
    """The colours of both modes."""
    used = ("paper", *BLOCKS)

    def colours(mode: int) -> str:
        filled = " ".join(f".{name} {{ fill: {COLOURS[name][mode]}; }}" for name in used)
        ink, soft = COLOURS["ink"][mode], COLOURS["soft"][mode]
        return (f"{filled} text {{ fill: {ink}; }} text.soft {{ fill: {soft}; }} "
                f".frame, .arrow {{ fill: none; stroke: {soft}; stroke-width: 1.2; }}")  # fmt: skip

    return (
        "<style>\ntext { font: 13px system-ui, sans-serif; } .middle { text-anchor: middle; }\n"
        f".small {{ font-size: 12px; }} .title {{ font-size: 15px; font-weight: 600; }}\n{colours(0)}\n"
        f"@media (prefers-color-scheme: dark) {{ {colours(1)} }}\n</style>"
    )
