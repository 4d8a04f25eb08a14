"""Layers × dims: the losses after fewer layers against loops over cut models in float64, and one run to the end."""

import json

import pytest
import torch
from torch.nn import functional as F

from matryo import Nesting, load, train, truncate
from matryo.data import Dataset
from matryo.data.texts.rows import TextRows
from matryo.encoders import Bert, BertConfig, Tokens
from matryo.errors import InputError, RecipeError
from matryo.heads import NestedLinear
from matryo.losses import SelfDistil
from matryo.losses.distil import distil_by_dim
from matryo.training.model import build_model
from matryo.training.objectives.classify import Classifier
from matryo.training.objectives.depths import Depth, after_layers
from matryo.training.objectives.pairs import DistilledModel, PairModel
from matryo.training.recipe.fields import Data, Encoder, Head, Loop, Objective, Optim, Recipe, Text

NESTING = Nesting([8, 32, 128], [0.5, 1, 2])
DEPTHS = (Depth(1, Nesting([8])), Depth(3, NESTING))
CONFIG = BertConfig.named("bert-mini", vocab_size=50, max_position_embeddings=16)
SHARES = [None, SelfDistil(0.5), SelfDistil(0.3, "next", 2.0)]


def bert():
    torch.manual_seed(0)
    return Bert(CONFIG).double().eval()


def tokens(count, seed=0):
    return Tokens(torch.randint(50, (count, 9), generator=torch.Generator().manual_seed(seed)))


def check(model, inputs, target, right):
    """The losses are ``right``, and training minimises their weighted sum, with the gradients of that."""
    model.depths = DEPTHS
    _, losses = model(inputs, target)
    torch.testing.assert_close(losses, torch.cat(right))
    weights = [NESTING.weights, *(depth.nesting.weights for depth in DEPTHS)]
    total = sum((one * torch.tensor(own)).sum() for one, own in zip(right, weights, strict=True))
    torch.testing.assert_close(model.weigh(losses), total)
    trained = [value for value in model.parameters() if value.requires_grad]
    got, wanted = (torch.autograd.grad(loss, trained, allow_unused=True) for loss in (model.weigh(losses), total))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)


def soft(logits, teacher, warmth):
    """The cross-entropy to a teacher that gets no gradient."""
    return F.cross_entropy(logits / warmth, (teacher.detach() / warmth).softmax(-1)) * warmth**2


@pytest.mark.parametrize("distil", SHARES)
@pytest.mark.parametrize("tied", [True, False])
def test_classes(distil, tied):
    model = Classifier(bert(), NestedLinear(NESTING, 7, tied=tied).double(), (0.0, 0.1, 0.2), distil)
    inputs, target, smoothing = tokens(6), torch.arange(6), {8: 0.0, 32: 0.1, 128: 0.2}
    whole = model.head.logits(model.encoder(inputs))
    options = {"label_smoothing": (0.0, 0.1, 0.2), "self_distil": distil or 0.0}
    right = [model.head.losses(model.encoder(inputs), target, **options)]
    for depth in DEPTHS:
        z = after_layers(model, depth.layers).encoder(inputs)
        by_dim = []
        for dim in depth.nesting.dims:
            logits = F.linear(z[:, :dim], model.head.weight_at(dim), model.head.bias_at(dim))
            loss = F.cross_entropy(logits, target, label_smoothing=smoothing[dim])
            if distil:
                loss = (1 - distil.share) * loss + distil.share * soft(logits, whole[-1], distil.temperature)
            by_dim.append(loss)
        right.append(torch.stack(by_dim))
    check(model, inputs, target, right)


@pytest.mark.parametrize("distil", SHARES)
@pytest.mark.parametrize("symmetric", [True, False])
def test_pairs(distil, symmetric):
    objective = Objective("pairs", temperature=0.3, symmetric=symmetric)
    model = PairModel(bert(), NESTING, objective, distil).double()
    asked, found, target = tokens(5), tokens(5 + 2, seed=1), torch.arange(5)   # two hard negatives

    def cosines(layers, dim):
        shallow = after_layers(model, layers).encoder
        return truncate(shallow(asked), dim) @ truncate(shallow(found), dim).T / model.temperature

    def directions(of, teacher=None):
        losses = []
        for turn in [lambda s: s, lambda s: s[:, :5].T][: 1 + symmetric]:
            loss = F.cross_entropy(turn(of), target)
            if distil and teacher is not None:
                # A divergence after fewer layers, and a cross-entropy to the larger dims: their gradients are equal.
                loss = (1 - distil.share) * loss + distil.share * soft(turn(of), turn(teacher), distil.temperature)
            losses.append(loss)
        return sum(losses) / len(losses)

    full = [cosines(4, dim) for dim in NESTING.dims]
    larger = [full[1] if distil and distil.teacher == "next" else full[2], full[2], None]
    right = [torch.stack([directions(own, teacher) for own, teacher in zip(full, larger, strict=True)])]
    right += [
        torch.stack([directions(cosines(depth.layers, dim), full[2]) for dim in depth.nesting.dims]) for depth in DEPTHS
    ]
    if distil:   # subtract the constant by which the divergence is smaller
        entropy = 0.0
        for turn in [lambda s: s, lambda s: s[:, :5].T][: 1 + symmetric]:
            teacher = (turn(full[2]) / distil.temperature).detach()
            entropy += soft(teacher * distil.temperature, teacher * distil.temperature, distil.temperature)
        right[1:] = [one - distil.share * entropy / (1 + symmetric) for one in right[1:]]
    check(model, (asked, found), target, right)


def test_distillation_from_another_model():
    model = DistilledModel(bert(), NESTING, Objective("distil"))
    wanted = torch.randn(6, 5, dtype=torch.double)
    model.taught_by = (lambda _: wanted,)
    nestings = {4: NESTING, **{depth.layers: depth.nesting for depth in DEPTHS}}
    right = [
        distil_by_dim(after_layers(model, layers).encoder(tokens(6)), wanted, nesting, 0.05)
        for layers, nesting in nestings.items()
    ]
    check(model, tokens(6), torch.zeros(6), right)


@pytest.mark.parametrize(
    ("encoder", "head", "message"),
    [
        (Encoder("convnet", layers=(2,)), Head(), r"can be cut.*\(got encoder.name convnet\)"),
        (Encoder("bert-mini", layers=(2, 4)), Head(), r"below the 4 layers .*always trained.*use for example 2"),
        (Encoder("bert-mini", layers=(2,)), Head(dims=(8, 16), layer_dims=(12,)), r"dims of the nesting \(got 12\)"),
    ],
)
def test_what_the_encoder_lacks_is_refused(encoder, head, message):
    with pytest.raises(RecipeError, match=message):
        build_model(Recipe(encoder=encoder, head=head), 3, vocabulary=50)


@pytest.mark.parametrize(("dims", "wanted"), [((), [(8, 16), (8, 16)]), ((8, 16), [(8,), (16,)])])
def test_a_recipe_says_which_dims_are_trained_after_each_layer_and_how_much_they_count(dims, wanted):
    head = Head(dims=(8, 16), weights=(1, 3), layer_dims=dims, layer_weight=0.5)
    model = build_model(Recipe(encoder=Encoder("bert-mini", layers=(1, 3)), head=head), 3, vocabulary=50)
    assert [depth.layers for depth in model.depths] == [1, 3]
    weight = {8: 0.5, 16: 1.5}
    assert [depth.nesting for depth in model.depths] == [Nesting(own, [weight[m] for m in own]) for own in wanted]


def test_a_run_from_end_to_end(tmp_path):
    """Training logs and tests every depth; the model loads, stops after fewer layers, and resumes as it was."""
    words = [f"{kind} number {i}" for i in range(8) for kind in ("red", "green", "blue")]
    split = TextRows(words, torch.arange(24).numpy() % 3)
    dataset = Dataset("words", ("red", "green", "blue"), {"train": split, "test": split})
    recipe = Recipe(
        name="depths",
        data=Data("texts", test=("test",)),
        encoder=Encoder("bert-mini", layers=(1, 3)),
        text=Text(vocabulary=64, length=8),
        head=Head(dims=(8, 64), layer_dims=(8, 64), self_distil=0.5),
        optim=Optim("adamw", lr=1e-3),
        loop=Loop(steps=3, batch=12, log_every=1, device="cpu", precision="fp32"),
    )
    run = train(recipe, dataset, tmp_path / "run", progress=False)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [*lines[0]["loss"], *lines[0]["loss after layer 3"]] == ["8", "64", "64"]
    assert [*lines[-1]["top1"], *lines[-1]["top1 after layer 1"]] == ["8", "64", "8"]
    model = load(run)
    shallow = load(run, layers=1)
    z = model.encode(words, 8, layers=1)
    assert (shallow.encode(words, 8) == z).all()
    assert not (model.encode(words, 8) == z).all()
    predicted = [model.classes.index(label) for label in model.predict(words, 8, layers=1).labels]
    assert (split.labels == predicted).mean() == pytest.approx(lines[-1]["top1 after layer 1"]["8"])
    assert model.description["layers"] == 4
    assert shallow.description["layers"] == 1
    assert shallow.description["name"] == "depths separate after layer 1"
    with pytest.raises(InputError, match="at most the encoder's 4"):
        model.encode(words, layers=5)
