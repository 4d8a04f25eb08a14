"""The extras of the package: complete for their task, and no cap on torch."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# Packages whose name in an error differs from the name on the registry.
DISTRIBUTIONS = {"pytorch": "torch", "faiss": "faiss-cpu", "open_clip": "open-clip-torch", "chdb": "chdb-core"}


def requirements(extra: str) -> set[str]:
    """The requirements of an extra, with those of the extras it refers to."""
    lines: set[str] = set()
    for line in EXTRAS[extra]:
        inner = re.fullmatch(r"matryo\[(.+)\]", line)
        lines |= set().union(*map(requirements, inner[1].split(","))) if inner else {line}
    return lines


def packages(extra: str) -> set[str]:
    names = (re.match(r"[\w.-]+", line) for line in requirements(extra))
    return {name[0].lower().replace("_", "-") for name in names if name}


def test_every_error_about_a_missing_package_names_an_extra_that_installs_it() -> None:
    seen = set()
    for path in (ROOT / "src").rglob("*.py"):
        pattern = r'MissingExtra(?:\.unless_installed)?\(\s*"([^"]+)", "([^"]+)"'
        for package, extra in re.findall(pattern, path.read_text(encoding="utf-8")):
            if package == "no-such-package":   # the example in errors.py
                continue
            name = DISTRIBUTIONS.get(package.lower(), package.lower())
            assert name in packages(extra), f"{path.name}: matryo[{extra}] does not install {package}"
            seen.add(name)
    assert {"torch", "matplotlib", "scipy", "pillow"} <= seen


def test_train_is_enough_for_the_demo_and_its_report() -> None:
    assert {"torch", "pillow", "tomli-w", "scipy", "matplotlib", "jinja2"} <= packages("train")


def test_all_has_everything_but_frameworks_what_needs_torchvision_and_what_only_we_need() -> None:
    databases = {"postgres", "duckdb", "clickhouse", "qdrant"}
    apart = {"all", "timm", "open_clip", "langchain", "llama-index", "ray", "docs", "test", "dev"} | databases
    for extra in EXTRAS.keys() - apart:
        assert packages(extra) <= packages("all"), extra
    assert not {"timm", "open-clip-torch", "torchvision"} & packages("all")
    assert packages("all") <= packages("dev")


def test_torch_has_no_upper_bound_in_the_metadata_and_one_in_our_set_up() -> None:
    torch = [line for extra in EXTRAS for line in requirements(extra) if line.startswith(("torch", "triton"))]
    assert torch
    assert not [line for line in torch if "<" in line or "==" in line.split(";")[0] or "~=" in line]
    capped = dict(re.findall(r"^(\w+)(<[\d.]+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"torch", "triton"} <= capped.keys()
    install = re.search(r"^INSTALL := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert install and "--constraint constraints.txt" in install[1]
