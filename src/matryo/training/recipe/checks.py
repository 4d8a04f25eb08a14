"""The rules for fields of a recipe that types cannot express."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matryo.errors import RecipeError
from matryo.files import is_plain_name
from matryo.nesting import Nesting

if TYPE_CHECKING:
    from matryo.training.recipe.fields import Recipe

    Rule = tuple[bool, str, object, str]


def check(recipe: Recipe) -> None:
    """Raise if the recipe breaks a rule."""
    check_rules([*_of_fields(recipe), *_of_layers(recipe), *_of_objectives(recipe)])
    if recipe.head.dims:
        Nesting(recipe.head.dims, recipe.head.weights or None)


def check_rules(rules: list[Rule]) -> None:
    """Raise for the first of the rules (holds, rule, got, cure) that does not hold."""
    for holds, rule, got, cure in rules:
        if not holds:
            raise RecipeError(rule, got=got, cure=cure)


def _of_fields(recipe: Recipe) -> list[Rule]:
    text = recipe.text
    data, head, augment, optim, loop = recipe.data, recipe.head, recipe.augment, recipe.optim, recipe.loop
    kind, layers = recipe.objective.kind, recipe.encoder.layers
    separate = head.kind in ("separate", "fixed") and kind == "classify" and not layers
    about = f"head.kind {head.kind}, objective.kind {kind}, encoder.layers {layers}"
    return [
        # By default a run is written to runs/<name>, so the name of a recipe must not lead elsewhere.
        (is_plain_name(recipe.name), "the name of a recipe must be a plain file name", repr(recipe.name)[:80],
         'write for example name = "my-recipe", and choose the folder of the run with --out'),
        (loop.epochs >= 0, "loop.epochs must not be negative", loop.epochs, "train for at least one epoch"),
        (loop.batch >= 1, "loop.batch must be at least 1", loop.batch, "use at least one item per step"),
        (loop.steps >= 0, "loop.steps must not be negative", loop.steps, "use 0 to count epochs instead"),
        (loop.parts >= 1 and loop.batch % loop.parts == 0, "loop.parts must divide loop.batch",
         f"{loop.parts} parts of {loop.batch}", "use 1, or a divisor of the batch"),
        (loop.log_every >= 1, "loop.log_every must be at least 1", loop.log_every, "use 1 to log every step"),
        (0 <= loop.seed < 2**32, "loop.seed must be in [0, 2³²)", loop.seed, "use a small integer"),
        (data.size >= 8, "data.size must be at least 8 pixels", data.size, "use larger images"),
        (data.workers >= 0, "data.workers must not be negative", data.workers, "0 decodes between the steps"),
        (optim.lr > 0, "optim.lr must be positive", optim.lr, "use a positive learning rate"),
        (optim.lr_batch >= 0, "optim.lr_batch must not be negative", optim.lr_batch,
         "use 0 for optim.lr without scaling"),
        (optim.peak >= 0, "optim.peak must not be negative", optim.peak, "use 0 for no warm-up"),
        (optim.warmup >= 0, "optim.warmup must not be negative", optim.warmup,
         "use 0 to count the epochs of optim.peak instead"),
        (optim.encoder_share > 0, "optim.encoder_share must be positive", optim.encoder_share,
         "use --finetune.unfreeze none to freeze the encoder"),
        (optim.weight_decay >= 0, "optim.weight_decay must not be negative", optim.weight_decay, "use 0 for none"),
        (optim.clip >= 0, "optim.clip must not be negative", optim.clip, "use 0 for no clipping"),
        (loop.test_every >= 0, "loop.test_every must not be negative", loop.test_every,
         "use 0 to test at the end only"),
        (loop.checkpoint_seconds >= 0, "loop.checkpoint_seconds must be 0 or more", loop.checkpoint_seconds,
         "for example 60"),
        (data.test_size == 0 or data.test_size >= 8, "data.test_size must be 0 or at least 8 pixels", data.test_size,
         "use larger images"),
        (0 <= optim.ema < 1, "optim.ema must be in [0, 1)", optim.ema, "use 0 for none, or for example 0.999"),
        (0 <= optim.label_smoothing < 1, "optim.label_smoothing must be in [0, 1)", optim.label_smoothing, "use 0.1"),
        (0 < data.test_crop <= 1, "data.test_crop must be in (0, 1]", data.test_crop, "use 1 to keep the whole image"),
        (len(data.mean) == 3 == len(data.std), "data.mean and data.std need one number per channel",
         (data.mean, data.std), "give three each"),
        (min(data.std, default=0) > 0, "data.std must be positive", data.std,
         "use the standard deviation of 0…1 images"),
        (len(augment.scale) == 2 and 0 < augment.scale[0] <= augment.scale[1],
         "augment.scale needs a smallest and a largest value", augment.scale, "give two positive numbers, in order"),
        (0 <= augment.pad < data.size, "augment.pad must be in [0, data.size)", augment.pad,
         "use fewer pixels of padding"),
        (not data.size_end or (len(data.size_ramp) == 2 and data.size_ramp[0] < data.size_ramp[1]),
         "data.size_end needs data.size_ramp", data.size_ramp, "give the first and last epoch of the change"),
        (head.kind != "fixed" or len(head.dims) <= 1, "a fixed head has one dim", head.dims, "choose one dim"),
        (all(0 <= value < 1 for value in head.smoothing), "head.smoothing must be in [0, 1)", head.smoothing,
         "use 0.1 for each dim"),
        (0 <= head.self_distil <= 1, "head.self_distil must be in [0, 1]", head.self_distil, "use 0.5, or 0 for none"),
        (head.self_distil_temperature > 0, "head.self_distil_temperature must be positive",
         head.self_distil_temperature, "use 1"),
        (not head.self_distil or recipe.objective.kind in ("classify", "pairs"),
         "head.self_distil needs objective.kind classify or pairs", f"objective.kind {recipe.objective.kind}",
         "use --head.self_distil 0"),
        (0 <= head.blend <= 1, "head.blend must be in [0, 1]", head.blend, "use 0.5, or 0 for none"),
        (not head.blend or separate, "head.blend needs separate heads on one encoder", about, "use --head.blend 0"),
        (recipe.encoder.whiten == "none" or (separate and head.bias),
         "encoder.whiten needs separate or fixed heads with a bias, on one encoder", f"{about}, head.bias {head.bias}",
         "use --encoder.whiten none"),
        (head.weigh == "loss" or separate, "head.weigh encoder needs separate heads on one encoder", about,
         "use --head.weigh loss"),
        (not head.smoothing or recipe.objective.kind == "classify", "head.smoothing needs objective.kind classify",
         f"objective.kind {recipe.objective.kind}", "leave head.smoothing empty"),
        (recipe.encoder.neck == "none" or (head.kind != "slimmable" and not text.encoder),
         "encoder.neck needs one encoder with one width", f"encoder.neck {recipe.encoder.neck}",
         "use --encoder.neck none"),
        (0 <= head.join < 1, "head.join must be in [0, 1)", head.join, "use 0 to train all dims from the start"),
        (not head.join or head.kind != "slimmable", "head.join does not apply to a slimmable network",
         f"head.join {head.join:g}", "use --head.join 0"),
        (head.kind != "slimmable" or not head.dims, "the dims of a slimmable network follow from encoder.widths",
         head.dims, "leave head.dims empty"),
    ]  # fmt: skip


def _of_layers(recipe: Recipe) -> list[Rule]:
    encoder, head, layers = recipe.encoder, recipe.head, recipe.encoder.layers
    norm, none = encoder.neck.endswith("batch"), "leave encoder.layers empty"
    return [
        (encoder.depth >= 0, "encoder.depth must not be negative", encoder.depth, "use 0 to keep all layers"),
        (layers == tuple(sorted({*layers})) and min(layers, default=1) >= 1,
         "encoder.layers must be positive and increasing", layers, "for example --encoder.layers 2,4"),
        (len(head.layer_dims) in (0, len(layers)), "head.layer_dims needs one dim for each of encoder.layers",
         f"{len(head.layer_dims)} dims, {len(layers)} numbers of layers", "leave it empty to train all dims"),
        (head.layer_weight > 0, "head.layer_weight must be positive", head.layer_weight, "use for example 0.2"),
        (not layers or recipe.objective.kind != "masked", "encoder.layers needs objective.kind classify, pairs or "
         "distil", f"objective.kind {recipe.objective.kind}", none),
        (not (layers or encoder.depth) or not recipe.text.encoder, "encoder.layers and encoder.depth need one encoder",
         f"encoder.name {encoder.name} and text.encoder {recipe.text.encoder}", none),
        (not layers or head.kind != "slimmable", "a slimmable network has widths, not layers", "head.kind slimmable",
         none),
        (not layers or not head.join, "head.join does not apply to encoder.layers", f"head.join {head.join:g}",
         "use --head.join 0"),
        (not layers or not norm, "the batch norm of a neck cannot serve several numbers of layers",
         f"encoder.neck {encoder.neck}", "use --encoder.neck none, linear or linear+layer"),
    ]  # fmt: skip


def _of_objectives(recipe: Recipe) -> list[Rule]:
    objective, kind, text, head = recipe.objective, recipe.objective.kind, recipe.text, recipe.head.kind
    dropout, path = recipe.encoder.dropout, recipe.encoder.drop_path
    # A projection and a second tower have random weights, unless finetune.start loads a whole run.
    random = recipe.encoder.dim or recipe.encoder.neck != "none" or text.encoder
    whole = bool(recipe.finetune.start) or (recipe.pretrained and not random)
    kept = whole and kind == "pairs" and head == "fixed"
    return [
        (kept or recipe.trains, "loop.epochs 0 needs a model whose weights are all pretrained",
         f"encoder.name {recipe.encoder.name}, encoder.dim {recipe.encoder.dim}, text.encoder {text.encoder!r}, "
         f"objective.kind {kind}, head.kind {head}",
         "train for at least one epoch; or use an encoder such as bert:FOLDER with --encoder.dim 0 --text.encoder '' "
         "--objective.kind pairs --head.kind fixed"),
        (objective.temperature > 0, "objective.temperature must be positive", objective.temperature,
         "use for example 0.05"),
        (kind != "pairs" or objective.temperature >= 0.01,
         "objective.temperature must be 0.01 or more, as lower ones make training unstable", objective.temperature,
         "use for example 0.05"),
        (0 < objective.mask < 1, "objective.mask must be in (0, 1)", objective.mask, "use for example 0.15"),
        (objective.gain > 0, "objective.gain must be positive", objective.gain, "use for example 1"),
        (objective.distil >= 0, "objective.distil must not be negative", objective.distil, "use 0 for none"),
        (bool(objective.teacher) or (kind != "distil" and not objective.distil), "distilling needs a teacher",
         "no objective.teacher", "set a run folder: --objective.teacher RUN"),
        (not objective.teacher or kind == "distil" or (kind == "pairs" and objective.distil > 0),
         "objective.teacher is set but no loss uses it",
         f"objective.teacher {objective.teacher} with objective.kind {kind} and objective.distil {objective.distil:g}",
         "use --objective.kind distil, or pairs with --objective.distil 1"),
        (kind != "masked" or head in ("tied", "fixed"), "objective.kind masked predicts words with the word embedding, "
         "which all dims share", f"head.kind {head}", "use --head.kind tied, or fixed"),
        (kind == "classify" or head != "slimmable", "a slimmable network needs objective.kind classify",
         f"objective.kind {kind}", "use another --head.kind"),
        (recipe.loop.parts == 1 or kind in ("classify", "masked"), "a batch of pairs cannot be computed in parts",
         f"loop.parts {recipe.loop.parts}", "use --loop.parts 1"),
        (text.length >= 8, "text.length must be at least 8 tokens", text.length, "64 tokens hold about two sentences"),
        (text.vocabulary >= 16, "text.vocabulary must be at least 16", text.vocabulary, "use for example 8192"),
        (dropout < 1, "encoder.dropout must be below 1", dropout, "use for example 0.1"),
        (0 <= path < 1, "encoder.drop_path must be in [0, 1)", path, "use for example 0.1"),
    ]  # fmt: skip
