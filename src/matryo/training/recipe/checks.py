"""The rules between and inside the fields of a recipe that types cannot say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.errors import RecipeError
from matryo.nesting import Nesting

if TYPE_CHECKING:
    from matryo.training.recipe.fields import Recipe

    Rule = tuple[bool, str, object, str]

__all__ = ["check"]


def check(recipe: Recipe) -> None:
    """Raise where a recipe breaks one of the rules."""
    for holds, rule, got, cure in (*_of_fields(recipe), *_of_objectives(recipe)):
        if not holds:
            raise RecipeError(rule, got=got, cure=cure)
    if recipe.head.dims:
        Nesting(recipe.head.dims, recipe.head.weights or None)


def _of_fields(recipe: Recipe) -> list[Rule]:
    data, head, augment, optim, loop = recipe.data, recipe.head, recipe.augment, recipe.optim, recipe.loop
    return [
        (loop.epochs >= 0, "loop.epochs must not be negative", loop.epochs, "train for one epoch or more"),
        (loop.batch >= 1, "loop.batch must be at least 1", loop.batch, "use one item a step or more"),
        (loop.steps >= 0, "loop.steps must not be negative", loop.steps, "0 counts epochs"),
        (loop.parts >= 1 and loop.batch % loop.parts == 0, "loop.parts must divide loop.batch",
         f"{loop.parts} parts of {loop.batch}", "use 1, or a divisor of the batch"),
        (loop.log_every >= 1, "loop.log_every must be at least 1", loop.log_every, "log at every step or less often"),
        (0 <= loop.seed < 2**32, "loop.seed must lie in [0, 2³²)", loop.seed, "use a small integer"),
        (data.size >= 8, "data.size must be at least 8 pixels", data.size, "use larger images"),
        (data.workers >= 0, "data.workers must not be negative", data.workers, "0 decodes in the training process"),
        (optim.lr > 0, "optim.lr must be positive", optim.lr, "use a positive learning rate"),
        (optim.lr_batch >= 0, "optim.lr_batch must not be negative", optim.lr_batch, "use 0 to take optim.lr as it is"),
        (optim.peak >= 0, "optim.peak must not be negative", optim.peak, "use 0 for no warm-up"),
        (optim.warmup >= 0, "optim.warmup must not be negative", optim.warmup, "0 counts the epochs of optim.peak"),
        (optim.encoder_share > 0, "optim.encoder_share must be positive", optim.encoder_share,
         "to keep the encoder as it is, use --finetune.unfreeze none"),
        (optim.weight_decay >= 0, "optim.weight_decay must not be negative", optim.weight_decay, "use 0 for none"),
        (optim.clip >= 0, "optim.clip must not be negative", optim.clip, "use 0 to clip nothing"),
        (loop.test_every >= 0, "loop.test_every must not be negative", loop.test_every, "0 measures at the end only"),
        (loop.checkpoint_seconds >= 0, "loop.checkpoint_seconds must be 0 or more", loop.checkpoint_seconds, "say 60"),
        (data.test_size == 0 or data.test_size >= 8, "data.test_size must be 0 or at least 8 pixels", data.test_size,
         "use larger images"),
        (0 <= optim.ema < 1, "optim.ema must lie in [0, 1)", optim.ema, "use 0 for none, or say 0.999"),
        (0 <= optim.label_smoothing < 1, "optim.label_smoothing must lie in [0, 1)", optim.label_smoothing, "use 0.1"),
        (0 < data.test_crop <= 1, "data.test_crop must lie in (0, 1]", data.test_crop, "1 keeps the whole image"),
        (len(data.mean) == 3 == len(data.std), "data.mean and data.std need one number a channel",
         (data.mean, data.std), "give three each"),
        (min(data.std, default=0) > 0, "data.std must be positive", data.std, "measure it on 0…1 images"),
        (len(augment.scale) == 2 and 0 < augment.scale[0] <= augment.scale[1],
         "augment.scale needs a smallest and a largest value", augment.scale, "give two positive numbers, in order"),
        (0 <= augment.pad < data.size, "augment.pad must lie in [0, data.size)", augment.pad, "reflect fewer pixels"),
        (not data.size_end or (len(data.size_ramp) == 2 and data.size_ramp[0] < data.size_ramp[1]),
         "data.size_end needs data.size_ramp", data.size_ramp, "give the first and last epoch of the growth"),
        (head.kind != "fixed" or len(head.dims) <= 1, "a fixed head has one dim", head.dims, "name one dim"),
        (0 <= head.join < 1, "head.join must lie in [0, 1)", head.join, "0 trains all dims from the start"),
        (not head.join or head.kind != "slimmable", "the widths of a slimmable network train together",
         f"head.join {head.join:g}", "use --head.join 0"),
        (head.kind != "slimmable" or not head.dims, "encoder.widths decide the dims of a slimmable network", head.dims,
         "leave head.dims empty"),
    ]  # fmt: skip


def _of_objectives(recipe: Recipe) -> list[Rule]:
    it, kind, text, head = recipe.objective, recipe.objective.kind, recipe.text, recipe.head.kind
    dropout, path = recipe.encoder.dropout, recipe.encoder.drop_path
    # A projection and a second tower begin with weights of their own, unless a whole run is begun with.
    whole = bool(recipe.finetune.start) or (recipe.pretrained and not recipe.encoder.dim and not text.encoder)
    kept = whole and kind == "pairs" and head == "fixed"
    return [
        (kept or not recipe.as_it_is, "with loop.epochs 0 all weights must have been trained already",
         f"encoder.name {recipe.encoder.name}, encoder.dim {recipe.encoder.dim}, text.encoder {text.encoder!r}, "
         f"objective.kind {kind}, head.kind {head}",
         "train for one epoch or more; or name an encoder such as bert:FOLDER, with --encoder.dim 0 --text.encoder '' "
         "--objective.kind pairs --head.kind fixed"),
        (it.temperature > 0, "objective.temperature must be positive", it.temperature, "0.05 is usual"),
        (kind != "pairs" or it.temperature >= 0.01, "objective.temperature must be 0.01 or more, as lower ones make "
         "training unstable", it.temperature, "0.05 is usual"),
        (0 < it.mask < 1, "objective.mask must lie in (0, 1)", it.mask, "0.15 is usual"),
        (it.gain > 0, "objective.gain must be positive", it.gain, "1 is usual"),
        (it.distil >= 0, "objective.distil must not be negative", it.distil, "0 is none"),
        (bool(it.teacher) or (kind != "distil" and not it.distil), "distilling needs a teacher", "no objective.teacher",
         "name a run folder: --objective.teacher RUN"),
        (not it.teacher or kind == "distil" or (kind == "pairs" and it.distil > 0), "a teacher must be listened to",
         f"objective.teacher {it.teacher} with objective.kind {kind} and objective.distil {it.distil:g}",
         "use --objective.kind distil, or pairs with --objective.distil 1"),
        (kind != "masked" or head in ("tied", "fixed"), "masked words are told apart by the embedding of words, which "
         "all dims share", f"head.kind {head}", "use --head.kind tied, or fixed"),
        (kind == "classify" or head != "slimmable", "a slimmable network classifies", f"objective.kind {kind}",
         "use another --head.kind"),
        (recipe.loop.parts == 1 or kind in ("classify", "masked"), "a batch of pairs is one: each is compared with all",
         f"loop.parts {recipe.loop.parts}", "use --loop.parts 1"),
        (text.length >= 8, "text.length must be at least 8 tokens", text.length, "64 holds a sentence or two"),
        (text.vocabulary >= 16, "text.vocabulary must be at least 16", text.vocabulary, "8192 is small already"),
        (dropout < 1, "encoder.dropout must be below 1", dropout, "0.1 is usual"),
        (0 <= path < 1, "encoder.drop_path must lie in [0, 1)", path, "0.1 is usual"),
    ]  # fmt: skip
