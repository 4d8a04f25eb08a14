"""List the bundled recipes, or print one.

`matryo recipes NAME > mine.toml` copies a recipe to a file; edit it, then run `matryo train mine.toml`.
"""

from __future__ import annotations

import argparse

from matryo.training.recipe.load import bundled_recipes, load_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """NAME, which may be absent."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the recipe to print (default: list them all)")


def run(args: argparse.Namespace) -> None:
    """Print one recipe as TOML, or one line per recipe."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in bundled_recipes().items()}
    if args.name is not None:
        if args.name not in texts:
            load_recipe(args.name)   # the error has the closest name
        print(texts[args.name], end="")
        return
    width = max(map(len, texts))
    for name, text in texts.items():
        print(f"{name:{width}}  {text.splitlines()[0].removeprefix('#').strip()}")
    print("matryo recipes NAME prints a recipe; matryo train NAME trains it")
