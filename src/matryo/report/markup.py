"""HTML from values: everything that comes from outside is escaped here."""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING

from matryo.errors import InputError

if TYPE_CHECKING:
    from matryo.report.section import Table

__all__ = ["code", "escape", "image", "kind_of", "prose", "table"]

_SIGNS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}


def image(data: bytes, alt: str) -> str:
    """A picture inside the page."""
    text = base64.b64encode(data).decode()
    return f'<img src="data:image/{kind_of(data)};base64,{text}" alt="{escape(alt)}">'


def kind_of(data: bytes) -> str:
    """The format of a picture, by its first bytes."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    for sign, kind in _SIGNS.items():
        if data.startswith(sign):
            return kind
    raise InputError("a picture must be PNG, WebP or JPEG", got=data[:12], cure="encode it as PNG")


def prose(text: str) -> str:
    """A sentence; neither the name of a metric nor a number in percent is broken over two lines."""
    return escape(text).replace("1-NN", "1\u2011NN").replace(" %", "\u00a0%")


def code(text: str) -> str:
    """Words of a machine."""
    return f"<code>{escape(text)}</code>"


def table(content: Table) -> str:
    """A table that scrolls by itself where the page is too narrow for it."""
    numbers = [all(_is_number(line[place]) for line in content.lines) for place in range(len(content.heads))]

    def row(cells: tuple[object, ...], tag: str) -> str:
        marks = ("" if number else ' class="text"' for number in numbers)
        return "".join(f"<{tag}{mark}>{escape(str(cell))}</{tag}>" for cell, mark in zip(cells, marks, strict=True))

    title = f"<caption>{prose(content.title)}</caption>" if content.title else ""
    body = "".join(f"<tr>{row(line, 'td')}</tr>" for line in content.lines)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(content.title or "Table")}">'
        f'<table>{title}<thead><tr>{row(content.heads, "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) or str(cell)[:1].isdigit() or cell in ("–", "", None) or str(cell)[:1] in "+−-"
