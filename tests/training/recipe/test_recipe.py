"""Recipes: what is bundled carries the paper's settings, what is written reads back, and every mistake is named."""

import dataclasses
import tomllib
from typing import Literal, get_args, get_origin

import pytest

from matryo.errors import NestingError, RecipeError
from matryo.training.recipe.fields import Augment, Data, Encoder, Finetune, Head, Loop, Objective, Optim, Recipe, Text
from matryo.training.recipe.load import bundled_recipes, load_recipe, override, recipe_fields, recipe_from_dict

NAMES = sorted(bundled_recipes())
NINE = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


# --- the bundled recipes ---


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_recipe_loads_and_holds_what_its_file_says(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    for section, given in tomllib.loads(bundled_recipes()[name].read_text(encoding="utf-8")).items():
        for key, value in given.items():
            stored = getattr(getattr(recipe, section), key)
            assert stored == (tuple(value) if isinstance(value, list) else value), f"{section}.{key}"


def test_the_recipes_of_the_paper_are_all_here():
    assert {"imagenet-rn50-mrl", "imagenet-rn50-mrle", "imagenet-rn50-fixed", "finetune", "demo"} <= set(NAMES)


KINDS = {"imagenet-rn50-mrl": "separate", "imagenet-rn50-mrle": "tied", "imagenet-rn50-fixed": "fixed"}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_imagenet_recipes_are_the_papers(name, kind):
    """Its appendix on training: FFCV's rn50_40_epochs, lr 0.475 on two GPUs, batch 256 on each."""
    recipe = load_recipe(name)
    assert recipe.head.kind == kind
    assert recipe.nesting(2048).dims == ((2048,) if kind == "fixed" else NINE)
    assert set(recipe.nesting(2048).weights) == {1.0}
    assert (recipe.encoder.name, recipe.encoder.stem, recipe.encoder.dim) == ("resnet50", "imagenet", 0)
    assert recipe.encoder.blurpool
    assert (recipe.loop.epochs, recipe.loop.batch) == (40, 256)
    optim = recipe.optim
    assert (optim.name, optim.lr, optim.lr_batch, optim.momentum) == ("sgd", 0.475, 512, 0.9)
    assert (optim.weight_decay, optim.label_smoothing, optim.nesterov) == (1e-4, 0.1, False)
    assert (optim.schedule, optim.peak) == ("triangular", 2)
    data = recipe.data
    assert (data.size, data.size_end, data.size_ramp) == (160, 192, (29, 34))
    assert (data.test_size, data.test_crop, data.test_flip) == (256, 224 / 256, True)
    assert (recipe.augment.crop, recipe.augment.scale, recipe.augment.flip) == ("resized", (0.08, 1.0), True)
    assert recipe.augment.colour == recipe.augment.grey == 0


def test_the_three_imagenet_recipes_differ_in_their_heads_alone():
    plain = {dataclasses.replace(load_recipe(name), name="same", head=Head()) for name in KINDS}
    assert len(plain) == 1


def test_finetuning_is_the_papers():
    """The same configuration aside from lr = 0.1 and 10 epochs, from one layer on."""
    tuned, full = load_recipe("finetune"), load_recipe("imagenet-rn50-mrl")
    assert (tuned.optim.lr, tuned.loop.epochs) == (0.1, 10)
    assert tuned.finetune.unfreeze == "layer4.2.conv2"
    assert dataclasses.replace(tuned.optim, lr=full.optim.lr) == full.optim
    assert dataclasses.replace(tuned.loop, epochs=40) == full.loop
    # The growth to 192 px begins after epoch 29, so ten epochs never reach it.
    assert dataclasses.replace(tuned.data, size_end=192, size_ramp=full.data.size_ramp) == full.data
    assert (tuned.encoder, tuned.head, tuned.augment) == (full.encoder, full.head, full.augment)


SEVEN = (12, 24, 48, 96, 192, 384, 768)


@pytest.mark.parametrize(
    ("name", "encoders", "steps", "batch", "optimiser", "rate"),
    [
        ("jft-vit-b16", ("vit-b16", ""), 300_000, 128, "adafactor", 1e-3),
        ("align-vit-b16-bert-base", ("vit-b16", "bert-base"), 1_000_000, 64, "adafactor", 1e-3),
        ("bert-base-mlm", ("bert-base", ""), 450_000, 1024 // 16, "adamw", 1e-4),
    ],
)
def test_the_other_modalities_are_the_papers(name, encoders, steps, batch, optimiser, rate):
    """Its appendix on training: batches a device, steps, and a linear decay that starts at the rate."""
    recipe = load_recipe(name)
    assert (recipe.encoder.name, recipe.text.encoder) == encoders
    assert recipe.nesting(768).dims == SEVEN
    assert (recipe.loop.steps, recipe.loop.batch) == (steps, batch)
    optim = recipe.optim
    assert (optim.name, optim.lr, optim.schedule, optim.peak, optim.warmup) == (optimiser, rate, "triangular", 0, 0)


def test_a_run_is_called_by_its_head_or_nested():
    pairs = Objective(kind="pairs")
    assert Recipe().variant == "separate"
    assert Recipe(objective=Objective(kind="masked"), head=Head(kind="tied")).variant == "tied"
    assert Recipe(objective=pairs).variant == "nested"
    assert Recipe(objective=pairs, head=Head(kind="fixed")).variant == "fixed"


def test_given_weights_are_known_by_name():
    given = ("bert:x", "transformers:x", "sentence-transformers:x", "open_clip:x")
    assert all(Recipe(encoder=Encoder(name=name)).pretrained for name in given)
    assert all(Recipe(text=Text(encoder=name)).pretrained for name in given)
    assert Recipe(finetune=Finetune(start="run")).pretrained
    assert Recipe(encoder=Encoder(name="timm:x", pretrained=True)).pretrained
    assert not Recipe(encoder=Encoder(name="timm:x")).pretrained


def test_every_source_has_its_name_in_recipes():
    from matryo.data.open import SOURCES

    (source,) = (field for field in recipe_fields() if field.name == "data.source")
    assert sorted(get_args(source.type)) == sorted(SOURCES)


# --- reading and writing ---


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_reads_back(tmp_path, name):
    recipe = load_recipe(name, {"optim.lr": "0.1234567890123", "head.weights": "", "loop.seed": "7"})
    assert load_recipe(write(tmp_path / "recipe.toml", recipe.to_toml())) == recipe


def test_a_recipe_that_differs_everywhere_reads_back(tmp_path):
    changes = {}
    for field in recipe_fields():
        if get_origin(field.type) is Literal:
            changes[field.name] = get_args(field.type)[-1]
        elif field.type is bool:
            changes[field.name] = str(not field.default)
        elif field.type is str:
            changes[field.name] = 'a "quoted" name\\with signs äß'
    changes |= {
        "data.test": "one,two", "data.size": "64", "data.size_end": "128", "data.size_ramp": "3,5", "optim.ema": "0.5",
        "data.mean": "0.1,0.2,0.3", "head.dims": "8", "head.weights": "2.5", "augment.scale": "0.3,0.4",
        "head.kind": "fixed", "encoder.widths": "0.5,1",
    }  # fmt: skip
    for name in ("encoder.neck", "encoder.whiten", "head.weigh"):   # not beside text.encoder, or without classes
        del changes[name]
    recipe = override(Recipe(name="ä"), changes)
    for name, text in changes.items():
        section, key = name.split(".")
        assert getattr(getattr(recipe, section), key) != getattr(getattr(Recipe(), section), key), (name, text)
    assert load_recipe(write(tmp_path / "recipe.toml", recipe.to_toml())) == recipe


def test_a_file_names_its_recipe_unless_it_says_otherwise(tmp_path):
    assert load_recipe(write(tmp_path / "mine.toml", "[loop]\nepochs = 2")).name == "mine"
    assert load_recipe(write(tmp_path / "mine.toml", 'name = "other"')).name == "other"
    assert load_recipe(write(tmp_path / "mine.toml", "")) == Recipe(name="mine")


def test_integers_are_numbers_where_numbers_are_wanted(tmp_path):
    recipe = load_recipe(write(tmp_path / "a.toml", "[optim]\nlr = 1\n[augment]\nscale = [1, 2]"))
    assert recipe.optim.lr == 1.0
    assert [type(value) for value in (recipe.optim.lr, *recipe.augment.scale)] == [float] * 3


def test_recipes_can_be_compared_and_cannot_be_changed():
    assert Recipe() == Recipe()
    assert hash(Recipe()) == hash(Recipe())
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().loop.epochs = 3


def test_every_field_has_a_name_a_default_and_help():
    fields = recipe_fields()
    assert len({field.name for field in fields}) == len(fields)
    for field in fields:
        section, key = field.name.split(".")
        assert field.default == getattr(getattr(Recipe(), section), key)
        assert len(field.help) > 5


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("loop.epochs", "7", 7),
        ("optim.lr", "1e-3", 0.001),
        ("optim.lr", "2", 2.0),
        ("loop.compile", "true", True),
        ("loop.graph", "No", False),
        ("encoder.name", "resnet18", "resnet18"),
        ("optim.name", "adamw", "adamw"),
        ("head.dims", "8,16, 32", (8, 16, 32)),
        ("head.dims", "8", (8,)),
        ("augment.scale", "0.5,1", (0.5, 1.0)),
        ("data.test", "flat, twemoji", ("flat", "twemoji")),
        ("data.test", "", ()),
    ],
)
def test_flags_are_read_as_their_type(name, text, value):
    section, key = name.split(".")
    found = getattr(getattr(override(Recipe(), {name: text}), section), key)
    assert found == value
    assert type(found) is type(value)


def test_overriding_changes_the_named_fields_alone():
    before = load_recipe("demo")
    after = override(before, {"optim.lr": "0.5", "loop.epochs": "3"})
    wanted = dataclasses.replace(
        before, optim=dataclasses.replace(before.optim, lr=0.5), loop=dataclasses.replace(before.loop, epochs=3)
    )
    assert after == wanted
    assert before == load_recipe("demo")
    assert load_recipe("demo", {"optim.lr": "0.5", "loop.epochs": "3"}) == wanted


def test_epochs_that_are_asked_for_take_the_place_of_steps():
    assert load_recipe("bert-base-mlm", {"loop.epochs": "3"}).loop.steps == 0
    assert load_recipe("bert-base-mlm", {"loop.epochs": "3", "loop.steps": "7"}).loop.steps == 7


# --- mistakes ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[optim]\nlearning_rate = 1", r"unknown recipe field \(got optim.learning_rate\)"),
        ("[optim]\nlabel_smothing = 1", "did you mean optim.label_smoothing?"),
        ("[optimizer]\nlr = 1", r"unknown recipe field \(got optimizer\): did you mean optim"),
        ("epochs = 3", "did you mean loop.epochs?"),
        ("zzzzzzz = 3", "matryo train --help lists the fields"),
        ("loop = 3", r"loop must be a table of fields \(got 3\): write \[loop\]"),
        ("[loop]\nepochs = 3.5", r"loop.epochs must be an integer \(got 3.5\)"),
        ("[loop]\nepochs = true", r"loop.epochs must be an integer \(got True\)"),
        ("[loop]\nepochs = '3'", r"loop.epochs must be an integer \(got '3'\)"),
        ("[optim]\nlr = true", "optim.lr must be a number"),
        ("[optim]\nlr = [1]", "optim.lr must be a number"),
        ("[loop]\ncompile = 1", r"loop.compile must be true or false \(got 1\)"),
        ("[encoder]\nname = 1", "encoder.name must be text"),
        ("[head]\ndims = 8", r"head.dims must be a list of integers \(got 8\)"),
        ("[head]\ndims = [8.0]", r"head.dims must be an integer \(got 8.0\)"),
        ("[augment]\nscale = 'all'", "augment.scale must be a list of numbers"),
        ("[optim]\nname = 'adam'", r"optim.name must be one of sgd, adamw, adafactor, muon \(got 'adam'\)"),
        ("[optim\nlr = 1", r"mine.toml must be TOML \(got .*line 1"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, text, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(tmp_path / "mine.toml", text))


def test_a_file_that_is_no_text_is_no_recipe(tmp_path):
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match=r"mine.toml must be TOML"):
        load_recipe(tmp_path / "mine.toml")


def test_an_unknown_recipe_is_named_with_the_nearest(tmp_path):
    with pytest.raises(RecipeError, match=r"no such recipe \(got imagenet-rn50-mlr\): did you mean imagenet-rn50-mrl"):
        load_recipe("imagenet-rn50-mlr")
    with pytest.raises(RecipeError, match=r"no such recipe.*choose .*demo, .* or a .toml file"):
        load_recipe(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("optim.lrr", "1", r"unknown recipe field \(got optim.lrr\): did you mean optim.lr"),
        ("lr", "1", "unknown recipe field"),
        ("name", "x", "unknown recipe field"),
        ("loop.epochs", "1e3", r"loop.epochs must be an integer \(got '1e3'\)"),
        ("optim.lr", "fast", r"optim.lr must be a number \(got 'fast'\)"),
        ("loop.compile", "maybe", r"loop.compile must be true or false \(got 'maybe'\)"),
        ("head.dims", "8,x", r"head.dims must be a list of integers \(got '8,x'\)"),
        ("optim.schedule", "linear", "optim.schedule must be one of triangular, cosine"),
    ],
)
def test_mistakes_in_a_flag_are_named(name, text, message):
    with pytest.raises(RecipeError, match=message):
        override(Recipe(), {name: text})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"loop": Loop(epochs=-1)}, r"loop.epochs must not be negative \(got -1\)"),
        ({"loop": Loop(epochs=0)}, r"loop.epochs 0 needs a model whose weights are all pretrained"),
        ({"loop": Loop(batch=0)}, "loop.batch must be at least 1"),
        ({"loop": Loop(log_every=0)}, "loop.log_every must be at least 1"),
        ({"loop": Loop(seed=-1)}, r"loop.seed must be in .*\(got -1\)"),
        ({"loop": Loop(seed=2**32)}, "loop.seed must be in"),
        ({"data": Data(size=7)}, "data.size must be at least 8 pixels"),
        ({"data": Data(workers=-1)}, "data.workers must not be negative"),
        ({"data": Data(test_crop=0.0)}, r"data.test_crop must be in \(0, 1\]"),
        ({"data": Data(test_crop=1.1)}, r"data.test_crop must be in \(0, 1\]"),
        ({"data": Data(mean=(0.5,))}, "need one number per channel"),
        ({"data": Data(std=())}, "need one number per channel"),
        ({"data": Data(std=(0.5, 0.0, 0.5))}, "data.std must be positive"),
        ({"data": Data(size_end=192)}, r"data.size_end needs data.size_ramp \(got \(\)\)"),
        ({"data": Data(size_end=192, size_ramp=(34, 29))}, "data.size_end needs data.size_ramp"),
        ({"augment": Augment(scale=(0.5,))}, "a smallest and a largest value"),
        ({"augment": Augment(scale=(0.5, 0.4))}, "a smallest and a largest value"),
        ({"augment": Augment(scale=(0.0, 0.4))}, "a smallest and a largest value"),
        ({"augment": Augment(pad=32)}, r"augment.pad must be in \[0, data.size\) \(got 32\)"),
        ({"augment": Augment(pad=-1)}, "augment.pad must be in"),
        ({"optim": Optim(lr=0.0)}, "optim.lr must be positive"),
        ({"optim": Optim(lr=float("nan"))}, "optim.lr must be positive"),
        ({"optim": Optim(lr_batch=-1)}, "optim.lr_batch must not be negative"),
        ({"optim": Optim(peak=-0.5)}, "optim.peak must not be negative"),
        ({"optim": Optim(weight_decay=-1e-4)}, "optim.weight_decay must not be negative"),
        ({"optim": Optim(ema=1.0)}, r"optim.ema must be in \[0, 1\)"),
        ({"optim": Optim(label_smoothing=1.0)}, "optim.label_smoothing must be in"),
        ({"optim": Optim(warmup=-1)}, "optim.warmup must not be negative"),
        ({"optim": Optim(encoder_share=0.0)}, "optim.encoder_share must be positive.*finetune.unfreeze none"),
        ({"loop": Loop(steps=-1)}, "loop.steps must not be negative"),
        ({"loop": Loop(batch=10, parts=3)}, r"loop.parts must divide loop.batch \(got 3 parts of 10\)"),
        ({"loop": Loop(parts=2), "objective": Objective(kind="pairs")}, "a batch of pairs cannot be computed in parts"),
        ({"objective": Objective(temperature=0.0)}, "objective.temperature must be positive"),
        ({"objective": Objective(mask=1.0)}, r"objective.mask must be in \(0, 1\)"),
        ({"objective": Objective(gain=0.0)}, r"objective.gain must be positive \(got 0.0\): use for example 1"),
        ({"objective": Objective(distil=-1.0)}, "objective.distil must not be negative"),
        ({"objective": Objective(kind="distil")}, "distilling needs a teacher.*--objective.teacher RUN"),
        ({"objective": Objective(kind="pairs", distil=1.0)}, "distilling needs a teacher"),
        ({"objective": Objective(kind="masked")}, r"all dims share \(got head.kind separate\): use --head.kind tied"),
        ({"objective": Objective(kind="pairs"), "head": Head(kind="slimmable")}, "a slimmable network needs"),
        ({"text": Text(length=7)}, "text.length must be at least 8 tokens"),
        ({"text": Text(vocabulary=15)}, "text.vocabulary must be at least 16"),
        ({"encoder": Encoder(dropout=1.0)}, "encoder.dropout must be below 1"),
        ({"encoder": Encoder(drop_path=1.0)}, r"encoder.drop_path must be in \[0, 1\)"),
        ({"head": Head(kind="fixed", dims=(8, 16))}, r"a fixed head has one dim \(got \(8, 16\)\): choose one dim"),
        ({"head": Head(join=1.0)}, r"head.join must be in \[0, 1\)"),
        ({"head": Head(smoothing=(0.1, 1.0))}, r"head.smoothing must be in \[0, 1\)"),
        ({"head": Head(self_distil=1.5)}, r"head.self_distil must be in \[0, 1\]"),
        ({"head": Head(self_distil_temperature=0.0)}, "head.self_distil_temperature must be positive"),
        ({"head": Head("tied", self_distil=0.5), "objective": Objective("masked")}, "head.self_distil needs"),
        ({"encoder": Encoder(layers=(4, 2))}, r"positive and increasing \(got \(4, 2\)\)"),
        ({"encoder": Encoder(layers=(2,)), "head": Head(layer_dims=(8, 16))}, "one dim for each of encoder.layers"),
        ({"encoder": Encoder(layers=(2,)), "head": Head("tied"), "objective": Objective("masked")}, "layers needs"),
        ({"head": Head(layer_weight=0.0)}, "layer_weight must be positive"),
        ({"encoder": Encoder(layers=(2,), neck="batch")}, "batch norm of a neck cannot serve"),
        ({"encoder": Encoder(layers=(2,)), "head": Head(join=0.5)}, "head.join does not apply to encoder.layers"),
        ({"encoder": Encoder(depth=2), "text": Text(encoder="bert-tiny")}, "need one encoder"),
        ({"head": Head(smoothing=(0.1,)), "objective": Objective(kind="pairs")}, "head.smoothing needs"),
        ({"head": Head(kind="slimmable"), "encoder": Encoder(neck="batch")}, "encoder.neck needs one encoder"),
        ({"head": Head(kind="slimmable", join=0.5)}, r"does not apply .*\(got head.join 0.5\): use --head.join 0"),
        ({"head": Head(kind="slimmable", dims=(8,))}, r"dims of a slimmable network .*\(got \(8,\)\): leave head.dims"),
    ],
)
def test_values_out_of_range_are_named(section, message):
    with pytest.raises(RecipeError, match=message):
        Recipe(**section)


def test_balance_and_smoothing_give_one_number_per_dim():
    recipe = Recipe(head=Head(balance="ends", smoothing=(0.0, 0.0, 0.05, 0.1)))
    nesting = recipe.nesting(64)
    assert (nesting.dims, nesting.weights) == ((8, 16, 32, 64), (0.2, 0.1, 0.2, 1.0))
    assert recipe.smoothing(nesting) == (0.0, 0.0, 0.05, 0.1)
    assert Recipe().smoothing(nesting) == (0.0,) * 4
    with pytest.raises(RecipeError, match=r"head.smoothing needs one number per dim .*give 5"):
        recipe.smoothing(recipe.nesting(128))


def test_a_nesting_that_is_none_or_does_not_fit_is_named():
    with pytest.raises(NestingError, match="one weight for each of the 2 dims"):
        Recipe(head=Head(dims=(8, 16), weights=(1.0,)))
    with pytest.raises(NestingError, match="increasing order"):
        Recipe(head=Head(dims=(16, 8)))
    with pytest.raises(NestingError, match=r"exceed the 512 dimensions.*got \(8, 1024\).*'' for the default dims$"):
        Recipe(head=Head(dims=(8, 1024))).nesting(512)
    with pytest.raises(NestingError, match=r"encoder.dim is 64, and --encoder.dim 0 uses the encoder's own"):
        Recipe(encoder=Encoder(dim=64), head=Head(dims=(8, 128))).nesting(64)
    with pytest.raises(NestingError, match="one weight for each of the 7 dims"):
        Recipe(head=Head(weights=(1.0,))).nesting(512)


def test_the_default_nesting_halves_the_encoders_dim():
    assert Recipe().nesting(512).dims == (8, 16, 32, 64, 128, 256, 512)
    assert Recipe().nesting(96).dims == (12, 24, 48, 96)
    assert Recipe().nesting(4).dims == (4,)
    assert Recipe(head=Head(kind="fixed")).nesting(512).dims == (512,)
    assert Recipe(head=Head(kind="fixed", dims=(64,))).nesting(512).dims == (64,)
    assert Recipe(head=Head(kind="slimmable")).nesting(512).dims == (128, 256, 384, 512)
    assert Recipe(head=Head(dims=(8, 64), weights=(2.0, 1.0))).nesting(512).weights == (2.0, 1.0)


def test_tables_from_json_give_the_same_recipe():
    recipe = load_recipe("demo")
    assert recipe_from_dict(dataclasses.asdict(recipe)) == recipe
