"""Command lines of random words, on small folders and files of every kind, some of them damaged."""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attacks.outcome import Outcome, forked
from matryo import EmbeddingSet
from matryo.cli import VERBS, build_parser, main
from matryo.embeddings import Head

PROMISE = "Every command line ends with exit code 0, 1 or 2 and at most one line of error, and writes only where told."
BOUNDED, SOAK = 60, 3000
_SECONDS = {"train": 4.0, "demo": 1.0, "export": 20.0}   # these may take longer than that, which is no failure
_PATIENCE = 30.0   # for all others
_TORCH_SIDE = ("demo", "train", "encode", "export")

_TINY = ["--data.size", "8", "--data.test", "test", "--encoder.name", "convnet", "--encoder.dim", "16", "--head.dims",
         "4,16", "--loop.steps", "1", "--loop.batch", "4", "--loop.device", "cpu", "--data.workers", "0"]  # fmt: skip
_COMMANDS = {
    "demo": ["--epochs 0 --quiet"],
    "train": ["finetune.toml --data pets --out new-run --quiet", "recipe.toml --data pets --quiet", "demo --out run"],
    "encode": ["run --data pets --out new-emb", "run pets/test --out new-items", "run - --out new-items", "run"],
    "export": ["run --to onnx --out new-export", "run --to timm --rows rows.jsonl"],
    "evaluate": ["emb --quiet", "emb --json rows.jsonl", "emb --protocols few-shot,cascade? --dims 4,16",
                 "emb --json -"],
    "classify": ["emb", "emb --cascade cascade.json", "run pets/test", "emb --holdout 0.5 --seed 3 --out new.csv"],
    "index": ["new-index vectors.npy", "new-index vectors.jsonl --dims 4,16", "index vectors.csv --upsert", "index",
              "index --delete a1 a2 --compact", "index --verify", "index --backup new-copy", "index - --format jsonl",
              "new-index emb/test --metric l2 --dtype float16", "index --build", "new-index good.parquet",
              "new-index twice.parquet"],
    "search": ["index vectors.npy -k 3", "index --like a1 a2 --json", "index vectors.jsonl --where {\"n\":{\"$gt\":3}}",
               "index vectors.npy --out new.npz", "index - --dims 4,16 --keep 9", "index vectors.npy --plan plan.json"],
    "plan": ["index --quiet --recall 0.9", "index --queries vectors.npy --out new-plan.json --json"],
    "report": ["--rows rows.jsonl --out new-report", "--rows damaged.jsonl --out new-report", "emb --out new-report"],
    "verify": ["run emb index", ". --json", "damaged emb", "damaged/index"],
    "info": ["run emb index rows.jsonl", "index --json", "damaged.jsonl", "run/embeddings"],
    "recipes": ["", "demo"],
    "completion": ["bash"],
}  # fmt: skip
_NUMBERS = ["0", "1", "-1", "2", "3", "16", "0.5", "1.5", "-0.5", "nan", "inf", "-inf", "1e-9", "1e30", "9" * 40,
            "1_0", "٣", "0x10", "", " 1", "+1", "1,2", "16,4", "4,16", "4,,16", "4,4", "true"]  # fmt: skip
_PATHS = ["run", "emb", "emb/test", "index", "pets", "pets/test", "rows.jsonl", "damaged.jsonl", "vectors.npy",
          "twice.parquet", "vectors.jsonl", "vectors.csv", "deep.json", "deep.jsonl", "loop", "loop/x", "gone",
          "empty", "noise.npy", "noise.parquet", "noise.csv", "vectors.npy/x", "x" * 300, "a/" * 2500 + "b",
          "n\udcff\udcfe", "☃ name", "a\nb.jsonl", "\x1b[31mred", ".", "", "-", "ids.txt", "cascade.json",
          "plan.json", "new.csv", "new.npz", "new.jsonl", "texts.txt", "new-report", "recipe.toml", "noise.toml",
          "locked/x", "damaged", "damaged/index", "damaged/emb/test"]  # fmt: skip
_TEXTS = ["", " ", "a", "train", "test", "none", "all", "evaluate", "pca", "id", "vector", "n", "cpu", "cuda:99",
          "--", "-", "%s", "%(prog)s", "{0}", "{", "[1", "null", "{}", '{"n": 3}', '{"n": {"$gt": "x"}}',
          '{"$or": []}', '{"n": {"$in": [1, null]}}', "[" * 9000, '{"a":' * 3000, "\ud800", "a\nb\tc", "x" * 100_000,
          "0,1", "cosine"]  # fmt: skip


def run(count: int, seed: int, folder: Path) -> Outcome:
    """Run ``count`` command lines, each in a child process and a fresh copy of the same inputs."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TMPDIR": str(folder / "tmp"), "HOME": str(folder / "home"), "COLUMNS": "80"}
    tempfile.tempdir = None
    for name in ("tmp", "home"):
        (folder / name).mkdir()
    trained = count > BOUNDED and importlib.util.find_spec("torch") is not None   # importing it takes seconds
    world = _world(folder / "world", trained=trained)
    verbs = {verb: _options(verb) for verb in VERBS if trained or verb not in _TORCH_SIDE}
    outcome = Outcome(0)
    for attempt in range(count):
        chance = random.Random(f"{seed}-{attempt}")
        words = _command(chance, verbs)
        streams = chance.choice(list(_STDIN)), chance.choices(list(_STDOUT), [20, 1, 1, 1])[0]
        work = folder / "work"
        shutil.copytree(world, work, symlinks=True)
        end = forked(_attempt, words, work, *streams, seconds=_SECONDS.get(words[0], _PATIENCE))
        shutil.rmtree(work)
        outcome.attempts += 1
        slow = end.kind == "hung" and words[0] in _SECONDS
        problem = "" if slow else f"{end.kind}: {end.text}" if end.kind != "returned" else _problem(*end.value)
        if problem:
            shown = " ".join(word if len(word) < 60 else word[:40] + "…" for word in words)
            outcome.failures.append(f"attempt {attempt}: matryo {shown!r} <{streams[0]} >{streams[1]}: {problem}")
    return outcome


# ── the inputs ────────────────────────────────────────────────────────────────────────────────────────────────


def _world(world: Path, *, trained: bool) -> Path:
    """Write embeddings (those of a run, if ``trained``), an index, rows, thresholds, vectors, and damaged files."""
    chance = np.random.default_rng(0)
    world.mkdir()
    os.chdir(world)
    vectors = chance.normal(size=(30, 16)).astype(np.float32)
    np.save("vectors.npy", vectors)
    rows = [{"id": f"a{i}", "vector": vector.tolist(), "n": i, "text": f"row {i}"} for i, vector in enumerate(vectors)]
    Path("vectors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [",".join(["id", *(f"v{i}" for i in range(16))])]
    lines += [",".join([f"b{i}", *map(str, vector)]) for i, vector in enumerate(vectors)]
    Path("vectors.csv").write_text("\n".join(lines) + "\n")
    Path("ids.txt").write_text("".join(f"c{i}\n" for i in range(30)))
    Path("texts.txt").write_text("a cat\na dog\n")
    Path("recipe.toml").write_text(Path(_bundled("demo")).read_text())
    Path("finetune.toml").write_text('name = "small"\n[data]\nsource = "folder"\n')
    Path("noise.toml").write_bytes(b"\xff[[")
    Path("deep.json").write_text("[" * 5000)
    Path("deep.jsonl").write_text('{"vector":' * 5000 + "\n")
    Path("empty").touch()
    for name in ("noise.npy", "noise.parquet", "noise.csv", "n\udcff\udcfe"):
        Path(name).write_bytes(chance.bytes(500))
    Path("loop").symlink_to("loop")
    Path("locked").mkdir(mode=0o000)
    _write_tables(vectors)
    if trained:
        _write_images(chance)
        _quietly("train", "finetune.toml", "--data", "pets", "--out", "run", "--quiet", *_TINY)
        _quietly("encode", "run", "--data", "pets", "--quiet")
        shutil.copytree("run/embeddings", "emb")
    else:
        head = Head.tied(chance.normal(size=(2, 16)), dims=[4, 16])
        for name, rows in (("train", 16), ("test", 12)):
            labels, z = np.arange(rows) % 2, chance.normal(size=(rows, 16))
            EmbeddingSet.write(f"emb/{name}", z, labels=labels, classes=["cat", "dog"], head=head, nesting=[4, 16])
    _quietly("index", "index", "vectors.jsonl", "--dims", "4,16", "--int8-up-to", "4", "--quiet")
    _quietly("evaluate", "emb", "--json", "rows.jsonl", "--quiet", "--protocols", "evaluate,few-shot,disagreement")
    _quietly("classify", "emb", "--save", "cascade.json", "--quiet")
    shutil.copytree("index", "damaged/index")
    shutil.copytree("emb", "damaged/emb")
    for path in (max(Path("damaged/index/segments").rglob("*.npy")), *Path("damaged/emb").glob("test/vectors.npy")):
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    Path("plan.json").write_text('{"stages": [{"dim": 4, "keep": 9}, {"dim": 16, "keep": 3}]}')
    _damage_rows()
    return world


def _write_images(chance: np.random.Generator) -> None:
    from PIL import Image

    for split, each in (("train", 8), ("test", 6)):
        for label in ("cat", "dog"):
            folder = Path("pets", split, label)
            folder.mkdir(parents=True)
            for number in range(each):
                Image.fromarray(chance.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{number}.png")


def _bundled(name: str) -> Path:
    from matryo.training.recipe.load import bundled_recipes

    return bundled_recipes()[name]


def _write_tables(vectors: Any) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return
    columns = [pyarrow.array([f"p{i}" for i in range(30)]), pyarrow.array(list(vectors))]
    for name, names in (("good", ["id", "vector"]), ("twice", ["vector", "vector"])):
        parts = columns if name == "good" else [columns[1], columns[1]]
        parquet.write_table(pyarrow.Table.from_arrays(parts, names=names), f"{name}.parquet")


def _quietly(*words: str) -> None:
    kept = sys.stdout
    sys.stdout = io.StringIO()
    try:
        code = main(list(words))
    finally:
        sys.stdout = kept
    assert code == 0, words


def _damage_rows() -> None:
    """Write damaged.jsonl: each row of rows.jsonl with one of its figures replaced."""
    chance = random.Random(0)
    strange = [None, "x", -1, 1e308, [], {}, [[]], {"8": "y"}, True, ["a", 1], float("nan")]
    with Path("damaged.jsonl").open("w") as file:
        for line in Path("rows.jsonl").read_text().splitlines():
            row = json.loads(line)
            row["figures"][chance.choice(list(row["figures"]))] = chance.choice(strange)
            file.write(json.dumps(row) + "\n")


# ── the words ─────────────────────────────────────────────────────────────────────────────────────────────────


def _options(verb: str) -> list[argparse.Action]:
    choices: Any = next(action for action in build_parser()._actions if action.choices and "train" in action.choices)
    return [action for action in choices.choices[verb]._actions if action.option_strings]


def _command(chance: random.Random, verbs: dict[str, list[argparse.Action]]) -> list[str]:
    rare = ("demo", "train", "recipes", "completion", "export", "report")
    verb = chance.choices(list(verbs), [1 if verb in rare else 4 for verb in verbs])[0]
    words = chance.choice(_COMMANDS.get(verb, [""])).split() if chance.random() < 0.8 else []
    if verb == "train" and words:
        words += _TINY
    if verb == "report":   # drawing takes a second
        words += ["--protocols", "evaluate", "--baselines", "none"]
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        action = chance.choice(verbs[verb])
        words.append(chance.choice(action.option_strings))
        many = {None: 1, "?": chance.randint(0, 1), "+": chance.randint(1, 3), "*": chance.randint(0, 3)}
        words += [_value(chance, action) for _ in range(many.get(action.nargs, 0))]
    if words and chance.random() < 0.3:
        words[chance.randrange(len(words))] = _word(chance)
    if chance.random() < 0.2:
        words.insert(chance.randint(0, len(words)), _word(chance))
    return [verb if chance.random() < 0.98 else _word(chance), *words]


def _value(chance: random.Random, action: argparse.Action) -> str:
    if chance.random() < 0.2:
        return _word(chance)
    if action.choices:
        return str(chance.choice(list(action.choices)))
    if action.type in (int, float) or "." in action.option_strings[0]:
        return chance.choice(_NUMBERS)
    return chance.choice(_PATHS if action.type is Path else _TEXTS)


def _word(chance: random.Random) -> str:
    return chance.choice(chance.choice([_NUMBERS, _PATHS, _TEXTS, ["a\0b"]]))


# ── one command, in a child process ───────────────────────────────────────────────────────────────────────────

_STDIN: dict[str, Callable[[Path], bytes | None]] = {
    "closed": lambda _: None,
    "nothing": lambda _: b"",
    "texts": lambda _: b"a cat\n\na dog\n",
    "lines": lambda work: (work / "vectors.jsonl").read_bytes()[:3000],
    "npy": lambda work: (work / "vectors.npy").read_bytes(),
    "noise": lambda work: (work / "noise.npy").read_bytes(),
}
_STDOUT = ("file", "closed", "full", "pipe")


def _attempt(words: list[str], work: Path, stdin: str, stdout: str) -> tuple[int, str, list[str]]:
    """Run the command in the folder ``work``; return the exit code, standard error, and what it wrote elsewhere."""
    given = _STDIN[stdin](work)
    os.chdir(work)
    log = work.parent / "stderr"
    errors = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    reads, writes = os.pipe()
    os.close(reads)
    (work.parent / "stdin").write_bytes(given or b"")
    sources = {
        0: os.open(work.parent / "stdin", os.O_RDONLY),
        1: {"file": lambda: os.open(os.devnull, os.O_WRONLY), "full": lambda: os.open("/dev/full", os.O_WRONLY),
            "closed": lambda: os.open(os.devnull, os.O_WRONLY), "pipe": lambda: writes}[stdout](),
        2: errors,
    }  # fmt: skip
    for number, handle in sources.items():
        os.dup2(handle, number)
    streams: Any = sys
    streams.stdin = None if given is None else io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", False)), "utf-8")
    output = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", False)), "utf-8")
    streams.stdout = None if stdout == "closed" else output
    streams.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w", False)), "utf-8", line_buffering=True)
    outside: list[str] = []
    sys.addaudithook(lambda event, arguments: _watch(work.parent, event, arguments, outside))
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else -1
    if sys.stdout is not None:
        sys.stdout.flush()   # as the interpreter does when it exits
    sys.stderr.flush()
    return code, log.read_text(encoding="utf-8", errors="replace"), outside


_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
            "shutil.rmtree", "shutil.move", "sqlite3.connect"}  # fmt: skip


def _watch(folder: Path, event: str, arguments: tuple[Any, ...], outside: list[str]) -> None:
    """Note the paths outside of ``folder`` that are written to, and connections and programs that are started."""
    if event in ("socket.connect", "os.system", "os.exec"):
        outside.append(f"{event} {arguments}")
    elif event == "subprocess.Popen" and arguments[0] not in ("git", "fc-list"):   # the commit, and matplotlib's fonts
        outside.append(f"{event} {arguments[0]}")
    elif event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            _note(folder, event, path, outside)
    elif event in _CHANGES:
        for path in arguments[: 2 if event == "os.rename" else 1]:
            _note(folder, event, path, outside)


def _note(folder: Path, event: str, path: Any, outside: list[str]) -> None:
    if isinstance(path, int) or str(path) == os.devnull:
        return
    place = os.path.realpath(os.fsdecode(path).removeprefix("file:"))
    if not place.startswith(str(folder) + "/"):
        outside.append(f"{event} {place}")


def _problem(code: int, stderr: str, outside: list[str]) -> str:
    """What is wrong with the end of a command; "" if nothing is."""
    lines = [line for line in stderr.replace("\r", "\n").split("\n") if line.strip()]
    errors = [line for line in lines if line.startswith("matryo") and ": error: " in line]
    if outside:
        return f"touched {outside[0]}"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if "Traceback" in stderr:
        return f"traceback: {lines[-1]}"
    if len(errors) != (code > 0) or (code and lines[-1] != errors[0]):
        return f"exit code {code} with {len(errors)} lines of error, the last line is {lines[-1:]}"
    if any(ord(character) < 32 for line in errors for character in line):
        return f"control characters in {errors[0]!r}"
    return ""
