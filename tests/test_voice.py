"""Plain words: phrases that make a reader stop are kept out of the sources, the documentation and the README."""

import ast
import re

from imports import FILES, SRC, parsed

ROOT = SRC.parents[1]
PROSE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
UNITS = (
    "bytes?|bits?|rows?|vectors?|figures?|lines?|milliseconds?|ms|seconds?|files?|folders?|heads?|columns?|numbers?|"
    "points?|tensors?|words?|images?|texts?|items?|objects?|once|names?|values?|labels?|ids?|tokens?|multiply-adds"
)
OWNERS = "row|query|dim|vector|class|step|split|line|text|token|batch|stage"
PHRASES = {
    "write 'per'": re.compile(rf"\b(?:{UNITS}) a (?:{OWNERS})\b"),
    "write 'resume' or 'continue'": re.compile(r"\bgoes on\b|\bgo on (?:from|where)\b"),
    "write 'fix'": re.compile(r"\bmend(?:s|ed|ing)?\b"),
    "say it plainly": re.compile(r"said aloud|told apart|\b(?:is|are) asked\b|\(so many\)|\bwhoever\b|the manners of"),
}
OPENINGS = re.compile(r"(?:The same\b|What\b|Whether .*\btold\b|So many\b|So much\b|Who\b)")


def docstrings(path):
    """Return (line, text) of every docstring of a file, those of attributes included."""
    bodies = (getattr(node, "body", None) for node in ast.walk(parsed(path)))
    statements = (statement for body in bodies if isinstance(body, list) for statement in body)
    constants = (s.value for s in statements if isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
    return [(value.lineno, value.value.strip()) for value in constants if isinstance(value.value, str)]


def test_no_phrase_of_the_old_dialect():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r}: {cure}"
        for path in (*FILES, *PROSE)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for cure, phrase in PHRASES.items()
        if (match := phrase.search(line))
    ]
    assert not found, "\n".join(found)


def test_docstrings_name_their_subject():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {text.splitlines()[0]!r}"
        for path in FILES
        for number, text in docstrings(path)
        if OPENINGS.match(text)
    ]
    assert not found, "\n".join(found)
