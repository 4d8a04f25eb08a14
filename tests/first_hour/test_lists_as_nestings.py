"""A list of dims is accepted wherever a Nesting is, and means the same."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from matryo import Cascade, EmbeddingSet, Index, Nesting, Plan, evaluate
from matryo.classify import cascade_curve
from matryo.embeddings import EmbeddingWriter, Head
from matryo.evaluation import default_dims
from matryo.nesting import as_nesting, prefix_norms
from matryo.retrieve import Blocks

HAS_TORCH = importlib.util.find_spec("torch") is not None
ROOMS = ["nesting", "data", "embeddings", "metrics", "results", "baselines", "classify", "retrieve", "evaluation",
         "report"]  # fmt: skip
TORCH_ROOMS = ["heads", "losses", "encoders", "training", "inference", "export"]
RECORDS = {"retrieve.Blocks", "embeddings.Manifest"}   # their fields are filled by Blocks.of and by the writer
RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.normal(size=(40, 16)).astype(np.float32)
LABELS = np.arange(40) % 4
HEAD = Head.tied(RANDOM.normal(size=(4, 16)).astype(np.float32), dims=[8, 16])


def index_of(nesting: Any, folder: Any) -> Any:
    with Index.create(folder / "idx", nesting) as index:
        index.add(VECTORS)
        return index.nesting, index.search(VECTORS[:3], 5, Plan.adaptive(8, 16, keep=9, k=5)).ids.tolist()


def set_of(nesting: Any, folder: Any) -> Any:
    written = EmbeddingSet.write(folder / "e", VECTORS, nesting=nesting).nesting
    with EmbeddingWriter(folder / "w", dim=16, nesting=nesting) as writer:
        writer.append(VECTORS)
    return written, EmbeddingSet.open(folder / "w").nesting, EmbeddingSet.of(VECTORS, nesting=nesting).nesting


def torch_call(name: str) -> Callable[[Any, Any], Any]:
    """A call of a loss or a head with fixed weights, as plain numbers."""

    def call(nesting: Any, _: Any) -> Any:
        import torch

        from matryo import heads, losses
        from matryo.encoders import SlimmableLinear
        from matryo.training import Recipe

        torch.manual_seed(0)
        z, other, weight, target = torch.randn(6, 16), torch.randn(6, 16), torch.randn(4, 16), torch.arange(6) % 4
        mean = torch.nn.CosineEmbeddingLoss()
        calls: dict[str, Callable[[], Any]] = {
            "heads.NestedLinear": lambda: [logits.tolist() for logits in heads.NestedLinear(nesting, 4)(z)],
            "encoders.SlimmableLinear": lambda: SlimmableLinear(nesting, 4).nesting,
            "losses.NestedRankingLoss": lambda: losses.NestedRankingLoss(torch.nn.Identity(), nesting).nesting,
            "losses.contrastive_by_dim": lambda: losses.contrastive_by_dim(z, other, nesting).tolist(),
            "losses.distil_by_dim": lambda: losses.distil_by_dim(z, other, nesting).tolist(),
            "losses.nested": lambda: losses.nested(mean, nesting, normalize=True, embeddings=2)(
                z, other, torch.ones(6)
            ).tolist(),
            "losses.nested_contrastive": lambda: losses.nested_contrastive(z, other, nesting).tolist(),
            "losses.nested_cross_entropy": lambda: losses.nested_cross_entropy(z, weight, target, nesting).tolist(),
            "losses.nested_distil": lambda: losses.nested_distil(z, other, nesting).tolist(),
            "losses.prefix_logits": lambda: [logits.tolist() for logits in losses.prefix_logits(z, weight, nesting)],
            "training.Recipe.smoothing": lambda: Recipe().smoothing(nesting),
        }
        return calls[name]()

    return call


NUMPY: dict[str, Callable[[Any, Any], Any]] = {
    "nesting.as_nesting": lambda nesting, _: as_nesting(nesting),
    "nesting.prefix_norms": lambda nesting, _: prefix_norms(VECTORS, nesting).tolist(),
    "embeddings.EmbeddingSet.transformed": lambda nesting, _: (
        EmbeddingSet.of(VECTORS).transformed(VECTORS, nesting=nesting).nesting
    ),
    "classify.Cascade": lambda nesting, _: Cascade(nesting, head=HEAD).fit(VECTORS, LABELS).thresholds_.tolist(),
    "classify.cascade_curve": lambda nesting, _: cascade_curve(
        VECTORS, LABELS, nesting=nesting, head=HEAD, holdouts=2
    ).to_figures(),
    "retrieve.Blocks.of": lambda nesting, _: [block.tolist() for block in Blocks.of(VECTORS, nesting).full],
    "retrieve.Index.create": index_of,
    "retrieve.Plan.check_fits": lambda nesting, _: Plan.adaptive(8, 16, keep=20).check_fits(nesting),
    "evaluation.default_dims": lambda nesting, _: default_dims(nesting),
    "evaluation.evaluate": lambda nesting, _: evaluate(
        (VECTORS, LABELS), (VECTORS[:9] + 1, LABELS[:9]), nesting=nesting, progress=False
    ).to_figures(),
    "embeddings.Description": set_of,
}
TORCH = {
    name: torch_call(name)
    for name in (
        "heads.NestedLinear", "encoders.SlimmableLinear", "losses.NestedRankingLoss", "losses.contrastive_by_dim",
        "losses.distil_by_dim", "losses.nested", "losses.nested_contrastive", "losses.nested_cross_entropy",
        "losses.nested_distil", "losses.prefix_logits", "training.Recipe.smoothing",
    )
}  # fmt: skip
CALLS = NUMPY | (TORCH if HAS_TORCH else {})


@pytest.mark.parametrize("name", CALLS)
def test_a_list_of_dims_means_the_nesting(name: str, tmp_path: Any) -> None:
    forms: list[Any] = [Nesting([8, 16]), [8, 16], (8, 16), np.array([8, 16]), range(8, 17, 8)]
    results = []
    for number, form in enumerate(forms):
        (tmp_path / str(number)).mkdir()
        results.append(CALLS[name](form, tmp_path / str(number)))
    assert all(result == results[0] for result in results)


def takes_a_nesting(call: Any) -> bool:
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return False
    return any("Nesting" in str(parameter.annotation) or parameter.name == "nesting" for parameter in parameters)


def test_no_public_function_is_missing() -> None:
    found = set()
    for room in [*ROOMS, *(TORCH_ROOMS if HAS_TORCH else [])]:
        module = importlib.import_module(f"matryo.{room}")
        for name in module.__all__:
            thing = getattr(module, name)
            names = [name]
            if inspect.isclass(thing):
                names += [f"{name}.{method}" for method in vars(thing) if not method.startswith("_")]
            for each in names:
                call = thing if each == name else getattr(thing, each.split(".")[1])
                if callable(call) and takes_a_nesting(call):
                    found.add(f"{room}.{each}")
    assert found - RECORDS <= CALLS.keys()
