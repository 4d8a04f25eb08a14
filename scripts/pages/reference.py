"""The reference pages: every option of the command line, every field of a recipe, and the bundled recipes."""

from __future__ import annotations

import argparse
import json
import typing
from collections.abc import Iterable
from itertools import groupby, takewhile
from typing import Any, Literal, get_args, get_origin

from matryo.cli import build_parser
from matryo.cli import main as matryo_main
from matryo.training.recipe.fields import Recipe
from matryo.training.recipe.load import bundled_recipes, recipe_fields
from pages.markdown import GENERATED, grid, page

RECIPES = "`matryo train NAME` takes the name of a bundled recipe or the path of a TOML file."
FIELDS = "A recipe sets some fields; the others keep these defaults. Each is also a flag: `--optim.lr 0.1`."


def cli_page() -> str:
    """Every verb with every option, from the parser itself."""
    parser = build_parser()
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    exits = (matryo_main.__doc__ or "").partition(". ")[2]
    parts = [GENERATED, "# Command line", f"{parser.description} {exits}", options(parser._actions)]
    parts += ["Every verb takes `--help`."]
    for verb, part in verbs.choices.items():
        places = " ".join(name(a) for a in part._actions if not a.option_strings)
        parts += [f"## matryo {verb}", (part.description or "").strip()]
        parts += ["```text\n" + " ".join(filter(None, ["matryo", verb, places, "[options]"])) + "\n```"]
        for group in part._action_groups:
            shown = [a for a in group._group_actions if not isinstance(a, argparse._HelpAction)]
            if shown:
                parts += [f"**{(group.title or '').capitalize()}**", options(shown)]
    return page(parts)


def options(actions: Iterable[argparse.Action]) -> str:
    """A list of options, one per line."""
    shown = [action for action in actions if not isinstance(action, argparse._SubParsersAction)]
    return "\n".join(f"- `{name(action)}`: {(action.help or '') % vars(action)}" for action in shown)


def name(action: argparse.Action) -> str:
    """An option as a user types it: ``--out DIR``."""
    value = action.metavar if isinstance(action.metavar, str) else "|".join(map(str, action.choices or ()))
    spelt = ", ".join(action.option_strings)
    return f"{spelt} {value}".strip() + (" …" if action.nargs == "+" else "")


def recipes_page() -> str:
    """Every field of a recipe, and the bundled recipe files."""
    bundled = {recipe: path.read_text(encoding="utf-8").strip() for recipe, path in bundled_recipes().items()}
    parts = [GENERATED, "# Recipes", RECIPES]
    parts += ["\n".join(f"- [{recipe}](#matryo-train-{recipe}): {summary(text)}" for recipe, text in bundled.items())]
    parts += ["## Fields", FIELDS]
    about = typing.get_type_hints(Recipe)
    for section, fields in groupby(recipe_fields(), key=lambda field: field.name.split(".")[0]):
        rows = [[f"`{f.name}`", spell(f.type), f"`{toml(f.default)}`", f.help] for f in fields]
        parts += [f"### {section}", (about[section].__doc__ or "").strip()]
        parts += [grid(["field", "type", "default", "meaning"], rows, left=4)]
    parts += ["## Bundled recipes"]
    for recipe, text in bundled.items():
        parts += [f"### matryo train {recipe}", f"```toml\n{text}\n```"]
    return page(parts)


def summary(text: str) -> str:
    """The first sentence of the comment that a recipe file begins with."""
    comment = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), text.splitlines()))
    return comment.partition(". ")[0].rstrip(".") + "."


def spell(kind: Any) -> str:
    """A field's type, in words."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list of {spell(get_args(kind)[0])}s".replace("texts", "names")
    return {int: "integer", float: "number", bool: "true or false", str: "text"}[kind]


def toml(value: Any) -> str:
    """A default as it would stand in a recipe file."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
