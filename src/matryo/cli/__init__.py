"""The command ``matryo``: one file a verb, in the order data flows. ``--help`` imports no torch."""

from __future__ import annotations

import argparse
import sys
from difflib import get_close_matches
from importlib import import_module

from matryo import __version__
from matryo.errors import MatryoError

__all__ = ["build_parser", "main"]

VERBS = ("demo", "train", "encode", "export", "evaluate", "classify", "index", "search", "plan", "report")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; each verb's module adds its own part."""
    parser = argparse.ArgumentParser(
        prog="matryo",
        description="Matryoshka representation learning: train one embedding, deploy it at every size.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"matryo {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in VERBS:
        module = import_module(f"matryo.cli.{verb}")
        about = (module.__doc__ or "").strip().splitlines()[0]
        part = verbs.add_parser(verb, help=about, description=module.__doc__, allow_abbrev=False,
                                formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
        module.add_arguments(part)
        options = [option for action in part._actions for option in action.option_strings]
        part.set_defaults(run=module.run, options=options)
    return parser


def _unrecognised(strange: list[str], known: list[str]) -> str:
    """Name the option that was probably meant."""
    for given in strange[:2]:   # optim.lr=1, alone or behind --set, as other programs have it
        option, _, value = f"--{given.removeprefix('--set=')}".partition("=")
        if value and option in known:
            return f"unrecognized argument {strange[0]}: say {option} {value}"
    word, name = strange[0], strange[0].split("=")[0]
    if not word.startswith("-"):
        return f"unrecognized argument {word}: paths stand side by side, before or behind all options"
    ends = [option for option in known if option.endswith("." + name.lstrip("-"))]   # --lr for --optim.lr
    near = ends or get_close_matches(name, known, n=1, cutoff=0.7)
    return f"unrecognized argument {word}" + (f": did you mean {near[0]}?" if near else "")


def main(argv: list[str] | None = None) -> int:
    """Run one command. Exit code 0: done; 1: an error, told in one line; 2: bad usage; 130: interrupted."""
    parser = build_parser()
    args, strange = parser.parse_known_args(argv)
    if strange:
        parser.error(_unrecognised(strange, args.options))
    try:
        args.run(args)
    except MatryoError as error:
        print(f"matryo: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        told = str(error) or "the same command goes on from where it was last saved"
        print(f"matryo: interrupted; {told}", file=sys.stderr)
        return 130
    except BrokenPipeError:   # `matryo … | head` has read enough
        sys.stderr.close()
        return 0
    return 0
