"""The docs tell the truth: examples run, commands parse, links lead somewhere, generated pages are fresh."""

import ast
import contextlib
import doctest
import importlib.util
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from pages.markdown import changes

import matryo
from matryo import EmbeddingSet, Nesting, evaluate
from matryo.cli import build_parser
from matryo.errors import MissingExtra
from matryo.results import Row, append_rows
from matryo.training.recipe.load import load_recipe, override, recipe_fields, recipe_from_dict

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "make_docs.py"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/**/*.md"))
NEEDS = {"torch", "PIL", "tomli_w", "matplotlib", "scipy", "faiss", "pyarrow", "tokenizers", "transformers",
         "sentence_transformers", "onnxruntime", "onnxscript", "timm", "open_clip", "pandas", "duckdb"}  # fmt: skip
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: what it says, where, and for an example what it prints."""

    page: Path
    line: int
    kind: str
    text: str
    run: bool = True
    prints: str | None = None

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks():
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        found = list(FENCE.finditer(text))
        for match, after in zip(found, [*found, None][1:], strict=True):
            before = text[: match.start()].rstrip("\n").rpartition("\n")[2]
            adjoins = after is not None and not text[match.end() : after.start()].strip() and after[1] == "text"
            yield Block(
                path,
                text.count("\n", 0, match.start()) + 1,
                match[1],
                match[2],
                run=before != "<!-- not run -->",
                prints=after[2] if adjoins else None,
            )


BLOCKS = list(blocks())
EXAMPLES = [block for block in BLOCKS if block.kind == "python"]


@pytest.mark.parametrize("block", EXAMPLES, ids=str)
def test_examples_run_and_print_what_the_page_says(block, tmp_path, monkeypatch):
    code = compile("\n" * block.line + block.text, str(block.page), "exec")
    if not block.run:
        return
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, {"__name__": "__main__"})
    except (MissingExtra, ModuleNotFoundError) as error:
        name = (error.__cause__ if isinstance(error, MissingExtra) else error).name
        if name not in NEEDS or importlib.util.find_spec(name) is not None:
            raise
        pytest.skip(f"needs {name}")
    if block.prints is not None:
        checker, flags = doctest.OutputChecker(), doctest.NORMALIZE_WHITESPACE
        assert checker.check_output(block.prints, printed.getvalue(), flags), printed.getvalue()


def test_few_examples_are_exempt():
    assert len(EXAMPLES) >= 15
    assert sum(not block.run for block in EXAMPLES) <= 11   # tests of other folders run most of them


def commands():
    for block in BLOCKS:
        for line in block.text.replace("\\\n", " ").splitlines() if block.kind == "sh" else ():
            words = shlex.split(line, comments=True)
            if words[:1] == ["torchrun"]:
                words = words[words.index("-m") + 1 :]
            if words[:1] == ["matryo"]:
                yield pytest.param(words[1:], id=f"{block}: {' '.join(words)}")


@pytest.mark.parametrize("words", list(commands()))
def test_commands_parse(words):
    args = build_parser().parse_args(words)
    if words[0] == "train" and words[1] != "RECIPE":
        given = {f.name: value for f in recipe_fields() if (value := getattr(args, f.name)) is not None}
        shown = next((block.text for block in BLOCKS if block.text.startswith(f"# {words[1]}\n")), None)
        if shown is not None:   # a recipe of the pages' own
            override(recipe_from_dict(tomllib.loads(shown)), given)
        else:
            load_recipe("demo" if words[1].endswith(".toml") else words[1], given)


def test_recipes_in_pages_are_recipes():
    shown = [block for block in BLOCKS if block.kind == "toml"]
    assert len(shown) > 5
    for block in shown:
        recipe_from_dict(tomllib.loads(block.text))


def test_every_option_is_documented():
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    parser = build_parser()
    verbs = next(action for action in parser._actions if action.dest == "==SUPPRESS==" or action.nargs == "A...")
    assert len(verbs.choices) >= 4
    for verb, part in verbs.choices.items():
        section = page.partition(f"## matryo {verb}\n")[2].partition("\n## ")[0]
        for action in part._actions:
            for option in {*action.option_strings, *([] if action.option_strings else [action.metavar])}:
                assert re.search(rf"`([^`]*, )?{re.escape(option)}[ `,]", section) or option in ("-h", "--help"), option
    assert "--help" in page
    assert "--version" in page


def public_names():
    """Dotted public names of the package and of its rooms, read from their ``__all__`` without importing them."""
    home = Path(matryo.__file__).parent
    rooms = sorted(path.stem for path in home.iterdir() if path.is_dir() or path.suffix == ".py")
    for room in ("", *(room for room in rooms if room not in INTERNAL and not room.startswith("_"))):
        path = home / f"{room}.py" if (home / f"{room}.py").exists() else home / room / "__init__.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        lists = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"]
        yield from (".".join(filter(None, ("matryo", room, name))) for name in ast.literal_eval(lists[0]))


# Type aliases, and functions that share the name of their module, which the page shows instead.
NOT_SHOWN = {"matryo.data.Split", "matryo.retrieve.Metric", "matryo.encoders.vit", "matryo.evaluation.measure"}
# Nobody outside calls these.
INTERNAL = {"arguments", "arrays", "cli", "compiled", "files", "folders", "mapped", "progress", "recipes", "tables"}


def test_every_room_is_in_the_reference():
    page = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    for room in {name.rpartition(".")[0] for name in public_names()} - {"matryo"}:
        assert f"\n::: {room}\n" in page, f"docs/reference/python.md must show {room}"


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if link.startswith(("https://", "http://")):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.is_file(), link
        assert path.is_relative_to(ROOT / "docs") or not page.is_relative_to(ROOT / "docs"), f"{link} leaves the site"
        assert not anchor or anchor in anchors(path), link


def anchors(page):
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title.lower())) for title in titles}


@pytest.mark.parametrize("path", [*PAGES, ROOT / "mkdocs.yml", *sorted(ROOT.glob("docs/results/*.jsonl"))], ids=str)
def test_no_page_names_a_place_on_a_machine(path):
    if path.exists():   # a source archive may lack some
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"(?<![\w.…/-])/(?:home|root|tmp|work|mnt|Users|usr|opt|var)\b\S*|\b[A-Z]:\\\S+", text)


def test_generated_pages_are_fresh_and_made_without_torch():
    code = (
        "import runpy, sys\n"
        "sys.argv = ['make_docs.py', '--check']\n"
        f"sys.path.insert(0, {str(SCRIPT.parent)!r})\n"   # as for a program
        f"try: runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
        "except SystemExit as end: code = end.code\n"
        "print('torch' in sys.modules)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run scripts/make_docs.py\n{done.stdout}{done.stderr}"
    assert done.stdout.splitlines()[-1] == "False"


def test_the_site_builds(tmp_path):
    """Every link and every reference resolves. A copy is built, so that the checkout is not changed."""
    pytest.importorskip("zensical")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "scripts" / "pages", tmp_path / "scripts" / "pages")
    (tmp_path / "src").symlink_to(ROOT / "src")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "site" / "reference" / "python" / "index.html").read_text(encoding="utf-8")
    missing = {name for name in public_names() if f'id="{name}"' not in reference}
    unsigned = {name for name in missing if name.rpartition(".")[2].isupper()}   # constants have no signature
    assert missing <= unsigned | NOT_SHOWN, f"not on the page of signatures: {missing - unsigned - NOT_SHOWN}"


# ── make_docs itself, on rows made up here ────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def make_docs():
    spec = importlib.util.spec_from_file_location("make_docs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(kind, subject, figures, *, seed=0, command="bench.py --recipe tiny", hardware="1 × GPU", when="2025-01-02"):
    return Row(kind, subject, figures, seed, command, "abc123", hardware, {"matryo": "0.1.0"}, when + "T00:00:00")


def trained(kind, seed, top1, seconds, **about):
    return row("train", f"tiny {kind}", {"top1": {"val": top1}, "seconds": seconds}, seed=seed, **about)


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a README and no rows."""
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "README.md").write_text("before\n<!-- demo-table -->\nnothing\n<!-- /demo-table -->\nafter\n")
    return tmp_path


def lines_of(path):
    return [line.strip("| ").split(" | ") for line in path.read_text(encoding="utf-8").splitlines() if "|" in line]


def test_training_rows_become_mean_and_deviation_over_seeds(make_docs, checkout):
    rows = [
        trained("separate", 0, {"8": 0.5, "16": 0.6}, 10.0),
        trained("separate", 1, {"8": 0.9, "16": 0.9}, 99.0),      # the same seed comes again below
        trained("separate", 1, {"8": 0.52, "16": 0.64}, 14.0),
        trained("tied", 0, {"8": 0.4, "16": 0.55}, 12.0),
        trained("fixed", 0, {"8": 0.45}, 8.0),
        trained("fixed", 1, {"8": 0.47}, 10.0),
        trained("fixed", 0, {"16": 0.61}, 9.0),
    ]
    append_rows(checkout / "docs/results/tiny-imagenet.jsonl", rows)
    assert make_docs.main(["--root", str(checkout)]) == 0
    page = checkout / "docs/results/tiny-imagenet.md"
    assert page.read_text(encoding="utf-8").startswith("<!-- Generated")
    assert lines_of(page) == [
        ["dim", "MRL (separate)", "MRL-E (tied)", "fixed", "MRL − fixed"],
        ["---", "---:", "---:", "---:", "---:"],
        ["8", "51.00 ± 1.41 (2)", "40.00 (1)", "46.00 ± 1.41 (2)", "+5.00"],
        ["16", "62.00 ± 2.83 (2)", "55.00 (1)", "61.00 (1)", "+1.00"],
        ["seconds per run", "12.0 ± 2.8 (2)", "12.0 (1)", "9.0 ± 1.0 (3)", "–"],
        ["seconds for the column", "12", "12", "18", "–"],
    ]
    origin = "- 1 × GPU; commit `abc123`; matryo 0.1.0; 2025-01-02:\n    - `bench.py --recipe tiny`\n"
    assert page.read_text(encoding="utf-8").endswith(f"tiny-imagenet.jsonl) holds 7 rows.\n\n{origin}")


def test_other_hardware_and_other_fields_get_tables_of_their_own(make_docs, checkout):
    longer = "tiny_imagenet.py --recipe tiny --set loop.epochs=60 optim.lr=0.1"
    rows = [
        trained("tied", 0, {"8": 0.1}, 1.0),
        trained("tied", 0, {"8": 0.2}, 1.0, hardware="2 × CPU"),
        trained("tied", 0, {"8": 0.3}, 1.0, command=longer),
    ]
    append_rows(checkout / "docs/results/tiny-imagenet.jsonl", rows)
    make_docs.main(["--root", str(checkout)])
    text = (checkout / "docs/results/tiny-imagenet.md").read_text(encoding="utf-8")
    assert [text.count(f"| 8 | {value} (1) |") for value in ("10.00", "20.00", "30.00")] == [1, 1, 1]
    assert "## tiny with loop.epochs = 60, optim.lr = 0.1\n" in text
    assert changes("matryo train demo --head.kind tied --optim.lr 0.2 --data DIR") == "optim.lr = 0.2"


def test_step_rows_become_a_table(make_docs, checkout):
    figures = {"fixed": {"p20": 1.0, "p50": 1.25, "p80": 1.5, "ratio": 1.0},
               "loop": {"p20": 2.0, "p50": 2.5, "p80": 3.0, "ratio": 2.0}}  # fmt: skip
    append_rows(checkout / "docs/results/step-cost.jsonl", [row("step-cost", "resnet18 batch 512", figures)])
    make_docs.main(["--root", str(checkout)])
    assert lines_of(checkout / "docs/results/step-cost.md")[2:] == [
        ["fixed", "1.00", "1.25", "1.50", "1.000"],
        ["loop", "2.00", "2.50", "3.00", "2.000"],
    ]


@pytest.fixture
def demo_rows(tmp_path):
    """Evaluation rows like the demo's: a nested and a fixed model on two splits."""
    random = np.random.default_rng(0)
    rows, found = [], {}
    for name, nesting in (("demo-nested", Nesting([2, 4, 8])), ("demo-fixed", Nesting([8]))):
        for split in ("flat", "twemoji"):
            sets = [
                EmbeddingSet.write(
                    tmp_path / f"{name}-{split}-{part}", random.normal(size=(40, 8)),
                    labels=random.integers(3, size=40), nesting=nesting, dataset="emoji", split=split,
                )
                for part in ("database", "queries")
            ]  # fmt: skip
            one = replace(evaluate(*sets, dims=[2, 3, 4, 6, 8], progress=False), model=name)
            rows.append(row("evaluate", f"{name} emoji {split}", one.to_figures(), command="matryo demo"))
            found[name, split] = one
    return rows, found


def test_the_demo_rows_fill_the_readme(make_docs, checkout, demo_rows):
    rows, found = demo_rows
    append_rows(checkout / "docs/results/demo.jsonl", [rows[0], *rows])     # measured again: the last stands
    make_docs.main(["--root", str(checkout)])
    readme = checkout / "README.md"
    models, splits = ("demo-nested", "demo-fixed"), ("flat", "twemoji")
    wanted = [
        [str(dim), *(f"{100 * found[model, split].at(dim).top1:.1f} (1)" for split in splits for model in models)]
        for dim in (2, 4, 8)
    ]
    assert lines_of(readme)[2:] == wanted
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- demo-table -->\n")
    assert text.endswith("<!-- /demo-table -->\nafter\n")
    assert "`matryo demo`" in text
    assert "abc123" in text
    (checkout / "docs/results/demo.jsonl").unlink()
    append_rows(checkout / "docs/results/demo.jsonl", [replace(rows[0], figures={**rows[0].figures, "model": "other"})])
    with pytest.raises(SystemExit, match="demo-nested"):
        make_docs.main(["--root", str(checkout)])
    append_rows(checkout / "docs/results/demo.jsonl", rows)
    make_docs.main(["--root", str(checkout)])
    page = (checkout / "docs/results/demo.md").read_text(encoding="utf-8")
    assert "split `twemoji`, mAP@10" in page
    assert "| dim | demo-nested | demo-fixed |" in page
    assert "3\\*" in page
    assert make_docs.main(["--root", str(checkout), "--check"]) == 0


def test_check_names_stale_pages_and_writes_nothing(make_docs, checkout, capsys):
    assert make_docs.main(["--root", str(checkout), "--check"]) == 1
    assert not (checkout / "docs/reference").exists()
    make_docs.main(["--root", str(checkout)])
    gone = checkout / "docs/results/gone.md"
    gone.write_text("made from rows that are no longer there")
    (checkout / "docs/reference/cli.md").write_text("edited by hand")
    capsys.readouterr()
    assert make_docs.main(["--root", str(checkout), "--check"]) == 1
    assert capsys.readouterr().out.split() == ["stale:", "docs/results/gone.md", "stale:", "docs/reference/cli.md"]
    make_docs.main(["--root", str(checkout)])
    assert not gone.exists()
    assert make_docs.main(["--root", str(checkout), "--check"]) == 0


def test_stored_rows_have_the_schema():
    for path in ROOT.glob("docs/results/*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert asdict(Row(**json.loads(line)))["commit"]


def test_the_rows_of_a_soak_fill_the_page_of_promises(make_docs, checkout):
    def attacked(name, attempts, failures):
        figures = {"promise": f"{name} holds", "attempts": attempts, "failures": failures, "said": [], "seconds": 9.0}
        return row("soak", name, figures)

    page = checkout / "docs/promises.md"
    page.write_text("before\n<!-- soak-table -->\nnothing\n<!-- /soak-table -->\nafter\n")
    # Of several rows of an attack the last one stands.
    rows = [attacked("kill_index", 5, 1), attacked("exact", 2000, 0), attacked("kill_index", 1000, 0)]
    append_rows(checkout / "docs/results/soak.jsonl", rows)
    make_docs.main(["--root", str(checkout)])
    assert lines_of(page)[2:] == [
        ["exact holds", "exact", "2,000", "0"],
        ["kill_index holds", "kill index", "1,000", "0"],
        ["all", "", "3,000", "0"],
    ]
    assert page.read_text(encoding="utf-8").endswith("<!-- /soak-table -->\nafter\n")
    picture = (checkout / "docs/promises.svg").read_text(encoding="utf-8")
    assert "2 attacks made 3,000 attempts to break a promise; 0 succeeded." in picture
    assert 'class="bad"' not in picture
    append_rows(checkout / "docs/results/soak.jsonl", [attacked("exact", 10, 2)])
    assert make_docs.main(["--root", str(checkout), "--check"]) == 1
    make_docs.main(["--root", str(checkout)])
    assert 'class="bad"' in (checkout / "docs/promises.svg").read_text(encoding="utf-8")
