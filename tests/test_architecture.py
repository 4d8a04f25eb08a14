"""The architecture as a test: which folders may import which, what `import matryo` loads, and what is public."""

import ast
import importlib
import importlib.util
import pkgutil
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest
from imports import FILES, SRC, imports, needs, parsed

import matryo

# Each room may import from the rooms listed; nothing else of matryo.
BASE = {"_core", "arguments", "arrays", "compiled", "errors", "files", "folders", "mapped", "nesting", "progress",
        "results", "tables"}  # fmt: skip
SEAM = BASE | {"data", "embeddings", "metrics"}
LEARNING = {"losses", "heads", "encoders"}
ALLOWED = {
    "errors": set(),
    "files": {"errors"},
    "folders": {"errors", "files"},
    "arrays": {"errors"},
    "compiled": {"_core", "errors"},
    "mapped": {"arrays", "errors", "files"},
    "arguments": {"errors", "arrays"},
    "nesting": {"errors", "arguments", "arrays"},
    "progress": set(),
    "results": {"errors", "arguments", "files", "tables"},
    "tables": {"errors"},
    "data": BASE,
    "embeddings": BASE,
    "metrics": BASE,
    "losses": BASE,
    "heads": BASE | {"losses"},
    "encoders": BASE | {"losses", "heads"},
    "training": SEAM | LEARNING,
    "inference": SEAM | LEARNING | {"training"},
    "export": SEAM | LEARNING | {"training", "inference"},
    "baselines": SEAM | {"retrofit"},
    "classify": SEAM,
    "retrofit": SEAM,
    "retrieve": SEAM | {"retrofit"},
    "engines": SEAM | {"retrieve"},
    "evaluation": SEAM | {"baselines", "classify"},
    "report": SEAM | {"baselines", "classify", "evaluation"},
    "serve": SEAM | {"encoders", "training", "inference", "retrieve"},
    "integrations": SEAM | {"retrieve"},
    "ray": SEAM | {"inference", "retrofit", "retrieve", "evaluation"},
    "reproduce": SEAM | {"training", "inference", "baselines", "classify", "retrieve", "evaluation", "report"},
    "cli": SEAM
    | {"training", "inference", "export", "baselines", "classify", "retrofit", "retrieve", "evaluation", "report"}
    | {"engines", "serve", "reproduce", "ray"},
    "__main__": {"cli"},
}
TORCH_SIDE = LEARNING | {"training", "inference", "export"}
# On the numpy side, one engine may use torch; on the torch side, recipes are read without it.
# The server loads torch with the first model, and a retrofit only to learn one.
USES_TORCH = ("retrieve/engines/torch/*", "retrofit/adapting.py", "retrofit/learning.py", "serve/encoder.py")
TORCH_FREE = ("training/__init__.py", "training/recipe/*.py", "training/run/paths.py", "inference/__init__.py")
# Only these may need a compiler to be imported, so nothing imports them before it searches or computes on a GPU.
KERNELS = ("retrieve/engines/torch/*", "losses/engines/triton/*")
EXTRAS = {"scipy", "triton", "matplotlib", "sklearn", "faiss", "pyarrow", "tokenizers", "transformers",
          "uvicorn", "httptools", "uvloop", "orjson", "psycopg", "duckdb", "qdrant_edge", "qdrant_client", "chdb",
          "clickhouse_connect", "pymilvus", "simplejpeg", "ray", "fsspec"}  # fmt: skip
MOST_NAMES = {"cli": 22}   # files in a folder, 16 elsewhere; cli has one per verb


def room(path):
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def matches(path, patterns):
    return any(fnmatch(str(path.relative_to(SRC)), pattern) for pattern in patterns)


def named(paths):
    return [str(path.relative_to(SRC)) for path in paths]


def test_imports_go_leftward():
    wrong = []
    for path in FILES:
        here = room(path)
        assert here in ALLOWED, f"{here} is a new room: give it a place in the map"
        rooms = {name.split(".")[1] for name in imports(path, at_runtime=False) if name.startswith("matryo.")}
        wrong += [f"{path.relative_to(SRC)} imports {other}" for other in rooms - {here} - ALLOWED[here]]
    assert wrong == []


def test_the_numpy_side_never_imports_torch():
    def imports_torch(path):
        return bool({name.split(".")[0] for name in imports(path, at_runtime=True)} & {"torch", "timm", "tensorboard"})

    numpy_side = [path for path in FILES if room(path) not in TORCH_SIDE or matches(path, TORCH_FREE)]
    assert named(path for path in numpy_side if imports_torch(path) and not matches(path, USES_TORCH)) == []


def test_what_an_extra_brings_is_imported_where_it_is_used():
    """Inside functions only: after a smaller installation every package must still import."""
    wrong = []
    for path in FILES:
        allowed = {"triton"} if matches(path, KERNELS) and path.name != "__init__.py" else set()
        wrong += [f"{path.relative_to(SRC)} needs {name}" for name in (needs(path) & EXTRAS) - allowed]
    assert wrong == []


def test_names_of_test_files_are_unique():
    """Two of one name are one module to a child process, which would import the wrong one."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_folders_stay_short():
    for folder in {path.parent for path in FILES}:
        names = list(folder.glob("*.py"))
        most = MOST_NAMES.get(folder.name, 16)
        assert len(names) <= most, f"{folder.relative_to(SRC)} has {len(names)} files: divide it"


def test_a_file_states_its_idea_and_stays_readable():
    assert named(path for path in FILES if not ast.get_docstring(parsed(path))) == []   # its idea, in its first line
    long = [path for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) > 400]
    assert named(long) == []   # more than one idea?


def test_nothing_is_pickled():
    for path in FILES:
        names = set(imports(path, at_runtime=False))
        assert not names & {"pickle", "joblib", "dill"}, path
        assert "torch.load(" not in path.read_text(encoding="utf-8"), path


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_import_is_light():
    heavy = "{'torch', 'PIL', 'safetensors', 'tqdm', 'numpy'}"
    assert run(f"import sys, matryo; print({heavy} & set(sys.modules))").strip() == "set()"
    numpy_side = "import sys, matryo.data, matryo.embeddings, matryo.evaluation, "
    numpy_side += "matryo.training.run.paths, matryo.cli"
    assert run(f"{numpy_side}; print({{'torch', 'PIL'}} & set(sys.modules))").strip() == "set()"


def test_help_loads_no_torch():
    for words in (["--help"], ["train", "--help"], ["demo", "--help"]):
        code = f"import sys, matryo.cli\ntry: matryo.cli.main({words})\nexcept SystemExit: pass\n"
        assert run(code + "print('torch' in sys.modules)").splitlines()[-1] == "False"


def test_public_names_exist_and_are_few():
    assert len(matryo.__all__) <= 15
    assert sorted(matryo.__all__) == list(matryo.__all__)
    for name in set(matryo.__all__) - {"load", "train"}:
        assert getattr(matryo, name) is not None
    assert set(matryo.__all__) <= set(dir(matryo))
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = matryo.nope


HAS_TORCH = importlib.util.find_spec("torch") is not None
PACKAGES = [info.name for info in pkgutil.iter_modules([str(SRC)]) if info.ispkg]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_lists_what_a_package_exports(name):
    if name in TORCH_SIDE and not HAS_TORCH:
        pytest.skip("needs torch")
    package = importlib.import_module(f"matryo.{name}")
    for public in package.__all__:
        assert getattr(package, public) is not None, f"{name}.{public}"
    defined = {key for key, value in vars(package).items() if getattr(value, "__module__", "") == package.__name__}
    assert {key for key in defined if not key.startswith("_")} <= set(package.__all__), "public, but not in __all__"
