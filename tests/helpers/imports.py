"""Which imports a source file makes, read from its syntax tree, and which packages it takes to import it."""

import ast
import functools
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src" / "matryo"
FILES = sorted(path for path in SRC.rglob("*.py") if path != SRC / "__init__.py")


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def found(path):
    """Every import of a file: (dotted name, whether only type checkers see it, whether it is inside a function)."""
    names = []

    def look(node, checked, inside):
        checked |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        inside |= isinstance(node, ast.FunctionDef)
        if isinstance(node, ast.Import):
            names.extend((alias.name, checked, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative imports hide where things come from"
            names.append((node.module, checked, inside))
            if node.module.split(".")[0] == "matryo":
                dotted = (f"{node.module}.{alias.name}" for alias in node.names)
                names.extend((name, checked, inside) for name in dotted if source_of(name))
        for inner in ast.iter_child_nodes(node):
            if not isinstance(inner, ast.expr):
                look(inner, checked, inside)

    look(parsed(path), False, False)
    return names


def imports(path, *, at_runtime, inside=True):
    """The dotted names a file imports.

    ``at_runtime`` excludes those for type checkers only; ``inside=False`` excludes those inside functions.
    """
    return [name for name, checked, deep in found(path) if not (at_runtime and checked) and (inside or not deep)]


@functools.cache
def source_of(name):
    """The file of a module of matryo by its dotted name, or None."""
    place = SRC.joinpath(*name.split(".")[1:])
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


@functools.cache
def steps(path):
    """The files of matryo that importing ``path`` imports next, and the other packages that it imports itself."""
    sources = {folder / "__init__.py" for folder in path.parents if SRC in folder.parents}
    sources, packages = {source for source in sources if source.is_file()}, set()
    for name in imports(path, at_runtime=True, inside=False):
        if name.split(".")[0] != "matryo":
            packages.add(name.split(".")[0])
        elif (source := source_of(name)) is not None:
            sources.add(source)
    return sources, packages


@functools.cache
def needs(path):
    """Every package that must be installed before ``path`` can be imported, through all modules it imports."""
    seen, waiting, packages = set(), [path], set()
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            sources, own = steps(current)
            waiting += sources
            packages |= own
    return frozenset(packages)
