"""Read recipes, bundled ones by name or TOML files, with any field overridden.

This module and `fields` do not import torch, so that ``matryo train --help`` is fast.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from matryo.arguments import checked
from matryo.errors import RecipeError
from matryo.training.recipe.fields import Recipe

RECIPE = "recipe.toml"   # the recipe of a run, in its folder


@dataclass(frozen=True)
class Field:
    """One settable field of a recipe: its dotted name, type, default and help."""

    name: str
    type: Any
    default: Any
    help: str


def recipe_fields() -> list[Field]:
    """Every field of a recipe in order, for the command line and the docs."""
    fields = []
    for section, cls in _sections().items():
        hints = typing.get_type_hints(cls, include_extras=True)
        for item in dataclasses.fields(cls):
            kind, text = get_args(hints[item.name])
            fields.append(Field(f"{section}.{item.name}", kind, item.default, text))
    return fields


def bundled_recipes() -> dict[str, Path]:
    """The recipes that come with matryo, by name."""
    folder = Path(str(resources.files("matryo") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


@checked
def load_recipe(source: str | Path, overrides: dict[str, str] | None = None) -> Recipe:
    """A recipe by its bundled name or the path of a TOML file, with ``{"optim.lr": "0.1"}`` overrides."""
    bundled = bundled_recipes()
    path = bundled.get(str(source), Path(source))
    if not path.is_file():
        near = get_close_matches(str(source), bundled, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise RecipeError("no such recipe", got=source, cure=f"{hint}choose {', '.join(bundled)} or a .toml file")
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path.name} must be TOML", got=error, cure="correct that line") from error
    return override(recipe_from_dict({"name": path.stem, **given}), overrides or {})


def override(recipe: Recipe, values: dict[str, str]) -> Recipe:
    """``recipe`` with fields, given by dotted name, set from text as on the command line.

    >>> override(Recipe(), {"optim.lr": "0.5", "head.dims": "8,16"}).head.dims
    (8, 16)
    """
    fields = {item.name: item for item in recipe_fields()}
    table: dict[str, Any] = dataclasses.asdict(recipe)
    for name, text in values.items():
        if name not in fields:
            raise _unknown(name, fields)
        section, key = name.split(".")
        table[section][key] = _parse(name, fields[name].type, text)
    if "loop.epochs" in values and "loop.steps" not in values:
        table["loop"]["steps"] = 0   # else the recipe's own loop.steps would take precedence
    return recipe_from_dict(table)


def recipe_from_dict(table: dict[str, Any]) -> Recipe:
    """A recipe from nested dicts (TOML or JSON); every name and value is checked."""
    table = dict(table)
    sections = _sections()
    values: dict[str, Any] = {"name": str(table.pop("name", "custom"))}
    fields = {item.name: item for item in recipe_fields()}
    for name, given in table.items():
        if name not in sections:
            raise _unknown(name, [*sections, *fields])
        if not isinstance(given, dict):
            cure = f"write [{name}] above its fields"
            raise RecipeError(f"{name} must be a table of fields", got=repr(given), cure=cure)
        for key in given:
            if f"{name}.{key}" not in fields:
                raise _unknown(f"{name}.{key}", fields)
        typed = {key: _convert(f"{name}.{key}", fields[f"{name}.{key}"].type, value) for key, value in given.items()}
        values[name] = sections[name](**typed)
    return Recipe(**values)


def _sections() -> dict[str, Any]:
    return {name: cls for name, cls in typing.get_type_hints(Recipe).items() if name != "name"}


def _unknown(name: str, known: typing.Iterable[str]) -> RecipeError:
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return RecipeError(
        "unknown recipe field",
        got=name,
        cure=f"did you mean {near[0]}?" if near else "matryo train --help lists the fields",
    )


def _convert(name: str, kind: Any, value: Any) -> Any:
    """Convert ``value`` from TOML to the field's type."""
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(name, get_args(kind)[0], item) for item in value)
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise RecipeError(f"{name} must be one of {', '.join(get_args(kind))}", got=repr(value), cure="pick one")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise RecipeError(f"{name} must be {_spell(kind)}", got=repr(value), cure="correct the value")


def _parse(name: str, kind: Any, text: str) -> Any:
    """Convert the ``text`` of a flag to the field's type."""
    words = {"true": True, "false": False, "yes": True, "no": False}
    try:
        if get_origin(kind) is tuple:
            return tuple(_parse(name, get_args(kind)[0], part.strip()) for part in text.split(",") if part.strip())
        if kind is bool:
            return words[text.lower()]
        if kind in (int, float):
            return kind(text)
    except (KeyError, ValueError):
        raise RecipeError(f"{name} must be {_spell(kind)}", got=repr(text), cure="correct the value") from None
    return text


def _spell(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"a list of {_spell(get_args(kind)[0])}s".replace("a number", "number").replace("an integer", "integer")
    return {int: "an integer", float: "a number", bool: "true or false", str: "text"}.get(kind, str(kind))
