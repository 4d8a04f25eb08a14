"""The command ``matryo``: one file per verb, in the order data flows. ``--help`` does not import torch."""

from __future__ import annotations

import argparse
import io
import os
import sys
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

from matryo import __version__
from matryo.errors import MatryoError, one_line
from matryo.files import storage

__all__ = ["VERBS", "build_parser", "main"]

VERBS = (
    "demo", "pack", "train", "encode", "export", "evaluate", "classify", "retrofit", "compress", "index", "search",
    "plan", "check", "engines", "report", "serve", "reproduce", "info", "verify", "recipes", "completion",
)  # fmt: skip
_RESUMABLE = ("demo", "pack", "train", "encode", "engines", "index", "reproduce")


class _Parser(argparse.ArgumentParser):
    """Errors take one line; ``--help`` prints the usage, which is long."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {one_line(message)}\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the whole command line; each verb's module adds its own arguments."""
    parser = _Parser(
        prog="matryo",
        description="Matryoshka representation learning: train one embedding, deploy it at every size.",
        epilog="Start with `matryo demo`. `matryo VERB --help` describes a verb and its options.",
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="version", version=f"matryo {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    for verb in VERBS:
        module = import_module(f"matryo.cli.{verb}")
        about = (module.__doc__ or "").strip().splitlines()[0]
        part = verbs.add_parser(verb, help=about, description=module.__doc__, allow_abbrev=False,
                                formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
        module.add_arguments(part)
        options = [option for action in part._actions for option in action.option_strings]
        part.set_defaults(run=module.run, options=options)
    return parser


def _unrecognised(unparsed: list[str], options: list[str]) -> str:
    """Return the error for arguments that the verb does not take, with the option that was probably meant."""
    for word in unparsed[:2]:   # optim.lr=1, alone or after --set, as other programs have it
        option, _, value = f"--{word.removeprefix('--set=')}".partition("=")
        if value and option in options:
            return f"unrecognized argument {unparsed[0]}: write {option} {value}"
    word, name = unparsed[0], unparsed[0].split("=")[0]
    if not word.startswith("-"):
        return f"unrecognized argument {word}: put all paths together, before or after the options"
    ends = [option for option in options if option.endswith("." + name.lstrip("-"))]   # --lr for --optim.lr
    near = ends or get_close_matches(name, options, n=1, cutoff=0.7)
    return f"unrecognized argument {word}" + (f": did you mean {near[0]}?" if near else "")


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 an error (one line), 2 bad usage, 130 interrupted."""
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    finally:
        _flush_output()


def _main(words: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):   # None if the caller closed it
            stream.reconfigure(errors="backslashreplace")   # names of files and ids may hold what cannot be printed
    parser = build_parser()
    try:
        usable = not any(b"\0" in os.fsencode(word) for word in words)
    except UnicodeEncodeError:
        usable = False
    if not usable:   # from Python only: no shell can pass such a word
        parser.error("an argument must not contain a NUL character or an unpaired surrogate")
    if not words:
        parser.print_help()
        return 0
    if not words[0].startswith("-") and words[0] not in VERBS:
        near = get_close_matches(words[0], VERBS, n=1)
        cure = f"did you mean {near[0]}?" if near else f"choose from {', '.join(VERBS)}"
        parser.error(f"no such verb (got {words[0]}): {cure}")
    args, unparsed = parser.parse_known_args(words)
    if unparsed:
        parser.error(_unrecognised(unparsed, args.options))
    try:
        args.run(args)
        if sys.stdout is not None:
            sys.stdout.flush()   # a full disk is an error of this command, not of the interpreter's exit
    except MatryoError as error:
        return _fail(error)
    except KeyboardInterrupt as error:
        cure = str(error) or ("run the same command again to resume" if args.verb in _RESUMABLE else "")
        print("matryo: interrupted" + (f"; {cure}" if cure else ""), file=sys.stderr)
        return 130
    except BrokenPipeError:   # `matryo … | head` has read enough
        pass
    except OSError as error:
        return _fail(_explained(error))
    except MemoryError as error:
        return _fail(f"not enough memory (got {error or 'no memory'}): use a smaller input, or a larger machine")
    return 0


def _fail(message: object) -> int:
    print(f"matryo: error: {one_line(message)}", file=sys.stderr)
    return 1


def _explained(error: OSError) -> OSError:
    """Return ``error`` with its path and how to fix it, where the cause is known."""
    try:
        with storage(error.filename or "the output", "use"):
            raise error
    except OSError as explained:
        return explained


def _flush_output() -> None:
    """Flush standard output; drop what it does not take, or the interpreter would fail on it when it exits."""
    try:
        sys.stdout.flush()
    except (OSError, AttributeError):
        with suppress(OSError, AttributeError):   # closed, or not a file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
