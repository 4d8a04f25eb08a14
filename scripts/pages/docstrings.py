"""Prepare docstrings for the site: doctests become code blocks, and Sphinx roles become plain code.

An extension of griffe, which reads the source for the page of signatures (see mkdocs.yml).
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

__all__ = ["SiteDocstrings", "to_markdown"]

_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):`~?([^`]+)`")
_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\n|\Z).*)*", re.M)


def to_markdown(text: str) -> str:
    """The docstring as Markdown.

    >>> print(to_markdown("See :func:`matryo.load`. x"))
    See `matryo.load`. x
    """
    text = _ROLE.sub(r"`\1`", text).replace("``", "`")
    return _DOCTEST.sub(lambda block: f"```pycon\n{block[0]}\n```", text)


class SiteDocstrings(Extension):
    """Rewrites every docstring that griffe reads."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrite the docstring of one class, function, module or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
