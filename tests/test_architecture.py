"""The map of the design, executable: who may import whom, what `import matryo` loads, and what is public."""

import ast
import functools
import importlib
import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import matryo

SRC = Path(matryo.__file__).parent

# Each room may import from the rooms listed; nothing else of matryo.
BASE = {"errors", "files", "nesting", "results"}
SEAM = BASE | {"data", "embeddings", "metrics"}
ALLOWED = {
    "errors": set(),
    "files": {"errors"},
    "nesting": {"errors"},
    "results": {"errors", "files"},
    "data": BASE,
    "embeddings": BASE,
    "metrics": BASE,
    "losses": BASE,
    "heads": BASE | {"losses"},
    "encoders": BASE | {"losses", "heads"},
    "training": SEAM | {"losses", "heads", "encoders"},
    "export": SEAM | {"losses", "heads", "encoders", "training"},
    "baselines": SEAM,
    "classify": SEAM,
    "retrieve": SEAM,
    "evaluation": SEAM | {"baselines", "classify"},
    "report": SEAM | {"baselines", "classify", "evaluation"},
    "cli": SEAM | {"training", "export", "baselines", "classify", "retrieve", "evaluation", "report"},
    "__main__": {"cli"},
}
TORCH_SIDE = {"heads", "losses", "encoders", "training", "export"}
# Modules that cannot be read without numba, so that nothing may import them before it is asked to search.
COMPILED = {
    "evaluation/kernel.py", "evaluation/kernel_vectors.py", "retrieve/certify.py", "retrieve/kernels.py",
    *(f"retrieve/partition/{name}.py" for name in ("bounded", "kernels", "stages", "tables", "vectors")),
}  # fmt: skip
# Modules that cannot be read without Triton (and torch), so that nothing may import them before it computes on a GPU.
TRITON = {
    "retrieve/device_kernels.py",
    "losses/kernels/fused.py",
    *(f"losses/kernels/fused_{one}.py" for one in
      ("kernels", "launch", "operands", "pulls", "rows", "small", "stats", "targets")),
}  # fmt: skip
# The one place of the numpy side that may use torch, inside functions: search on a GPU.
ON_A_GPU = {"retrieve/gpu.py", "retrieve/device.py", "retrieve/device_steps.py"}
TORCH_FREE_INSIDE = {"training/__init__.py", "training/recipe.py", "training/recipes.py", "training/rules.py"}
FILES = sorted(path for path in SRC.rglob("*.py") if path != SRC / "__init__.py")


def room(path):
    return path.relative_to(SRC).parts[0].removesuffix(".py")


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def found(path):
    """Every import of a file: its dotted name, whether it is for type checkers only, and whether in a function."""
    names = []

    def look(node, checked, inside):
        checked |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        inside |= isinstance(node, ast.FunctionDef)
        if isinstance(node, ast.Import):
            names.extend((alias.name, checked, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports hide where things come from"
            names.append((node.module, checked, inside))
            if node.module == "matryo":
                modules = (alias.name for alias in node.names if (SRC / f"{alias.name}.py").exists())
                names.extend((f"matryo.{name}", checked, inside) for name in modules)
        for inner in ast.iter_child_nodes(node):
            if not isinstance(inner, ast.expr):
                look(inner, checked, inside)

    look(parsed(path), False, False)
    return names


def imports(path, *, at_runtime, inside=True):
    """The dotted names a file imports; with ``at_runtime``, without those for type checkers only.

    Without ``inside``, those of functions are left out too.
    """
    return [name for name, checked, deep in found(path) if not (at_runtime and checked) and (inside or not deep)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_go_leftward(path):
    here = room(path)
    assert here in ALLOWED, f"{here} is a new room: give it a place in the map"
    for name in imports(path, at_runtime=False):
        parts = name.split(".")
        if parts[0] == "matryo" and len(parts) > 1 and parts[1] != here:
            assert parts[1] in ALLOWED[here], f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_the_numpy_side_never_imports_torch(path):
    inside = str(path.relative_to(SRC))
    if inside in TRITON or (room(path) in TORCH_SIDE and inside not in TORCH_FREE_INSIDE):
        return
    names = {name.split(".")[0] for name in imports(path, at_runtime=True, inside=inside not in ON_A_GPU)}
    assert not names & {"torch", "timm", "tensorboard"}, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_what_an_extra_brings_is_imported_where_it_is_used(path):
    """Inside functions only: whoever installs less must still be able to import everything."""
    if str(path.relative_to(SRC)) in COMPILED | TRITON:
        return
    top = set(imports(path, at_runtime=True, inside=False))
    assert not top & {f"matryo.{name.removesuffix('.py').replace('/', '.')}" for name in COMPILED | TRITON}, path
    extras = {"scipy", "numba", "triton", "matplotlib", "sklearn", "faiss", "pyarrow", "tokenizers", "transformers"}
    assert not {name.split(".")[0] for name in top} & extras, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_a_file_states_its_idea_and_stays_readable(path):
    assert ast.get_docstring(parsed(path)), "the first line of a file states its one idea"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, "more than one idea?"


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
    numpy_side = "import sys, matryo.data, matryo.embeddings, matryo.evaluation, matryo.training.recipes, matryo.cli"
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
