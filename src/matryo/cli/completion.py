"""Print a shell script that completes matryo's verbs, options and recipes.

bash: `matryo completion bash > ~/.local/share/bash-completion/completions/matryo`
zsh:  `matryo completion zsh > ~/.zfunc/_matryo`, with ~/.zfunc in $fpath before compinit
fish: `matryo completion fish > ~/.config/fish/completions/matryo.fish`
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """SHELL."""
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], metavar="SHELL", help="bash, zsh or fish")


def run(args: argparse.Namespace) -> None:
    """Print the script."""
    from matryo.cli import build_parser
    from matryo.errors import MissingExtra
    from matryo.training.recipe.load import bundled_recipes

    with MissingExtra.unless_installed("shtab", "completion"):
        import shtab
    parser = build_parser()
    for group in parser._subparsers._group_actions if parser._subparsers else ():
        for action in (action for verb in dict(group.choices or {}).values() for action in verb._actions):
            if action.type is Path:
                action.complete = shtab.FILE
            elif (action.dest, action.metavar) in (("recipe", "RECIPE"), ("name", "NAME")):
                action.choices = list(bundled_recipes())
    print(shtab.complete(parser, args.shell))
