"""The teacher of a distillation: a trained model or a pretrained encoder, called once per batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from matryo.data.texts.tokenizer import Tokenizer
from matryo.encoders import build_encoder
from matryo.errors import RecipeError
from matryo.training.objectives.base import NestedModel, embed_side
from matryo.training.recipe.against_data import check_length
from matryo.training.run.paths import RunFolder
from matryo.training.run.trained import open_trained
from matryo.training.step import autocast

if TYPE_CHECKING:
    from torch import Tensor, nn

    from matryo.training.recipe.fields import Recipe


class Teacher:
    """Called with the inputs of a batch, returns their vectors, without gradients."""

    def __init__(self, network: nn.Module, recipe: Recipe, device: torch.device) -> None:
        self.network, self.recipe, self.device = network.to(device).eval(), recipe, device

    def __call__(self, inputs: Any) -> Tensor:
        """Images or tokens → [batch, d]."""
        with torch.no_grad(), autocast(self.recipe, self.device):
            if isinstance(self.network, NestedModel):
                return self.network.embed(inputs)
            return embed_side(self.network, inputs).float()


def open_teacher(recipe: Recipe, tokenizer: Tokenizer | None, device: torch.device) -> Teacher:
    """Open objective.teacher: a run folder or an encoder, which must read the same inputs as the student."""
    name = recipe.objective.teacher
    run = RunFolder(Path(name))
    network: nn.Module
    if run.complete:
        folder, (network, _) = run.path, open_trained(run)
        theirs, ours = run.recipe.data, recipe.data
        if tokenizer is None and (theirs.mean, theirs.std) != (ours.mean, ours.std):
            raise RecipeError(
                "student and teacher must normalise images alike",
                got=f"data.mean {ours.mean} and {theirs.mean}",
                cure="use the data.mean and data.std of the teacher for the student",
            )
    else:
        exists = run.path.exists()
        if ":" not in name and (exists or len(run.path.parts) > 1):   # a path, not the name of an encoder
            raise RecipeError(
                "objective.teacher must be the folder of a complete run, or an encoder",
                got=f"{name}, which {'holds no run.json' if exists else 'does not exist'}",
                cure="check the path, or let its training finish",
            )
        folder = Path(name.partition(":")[2])
        network = build_encoder(name, size=recipe.data.size, pretrained=name.startswith("timm:"))
    if tokenizer is not None:
        check_length(recipe, network, f"the teacher {name}")
        _check_tokenizer(recipe, folder, tokenizer)
    return Teacher(network, recipe, device)


def _check_tokenizer(recipe: Recipe, folder: Path, tokenizer: Tokenizer) -> None:
    if RunFolder(folder).tokenizer is None:
        return
    theirs = Tokenizer.open(folder)
    sample = ["Student and teacher must number the same pieces of words alike: 12,345 unbelievable cases."]
    mine, other = (each.encode(sample, recipe.text.length)[0].tolist() for each in (tokenizer, theirs))
    if mine != other or tokenizer.vocabulary != theirs.vocabulary:
        raise RecipeError(
            "student and teacher must use the same tokenizer",
            got=f"another in {folder}",
            cure=f"use --text.tokenizer {folder}",
        )
