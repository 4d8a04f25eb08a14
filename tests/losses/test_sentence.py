"""NestedRankingLoss against sentence-transformers' own losses, on a small BERT with random weights and dropout."""

import copy

import pytest
import torch
from torch import nn

from matryo import Nesting
from matryo.errors import InputError, NestingError
from matryo.losses.sentence_transformers.ranking import NestedRankingLoss

st = pytest.importorskip("sentence_transformers", minversion="6.0")
transformers = pytest.importorskip("transformers")

from sentence_transformers.sentence_transformer import losses  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: E402

DIMS = [24, 5, 12]
ANCHORS = ["a b c", "d e", "f g h i j k", "l", "m n o p", "q r s t u v w x"]
POSITIVES = ["b c", "e f g h", "j", "l m n o p", "o p q", "v w"]
NEGATIVES = [["z a y b x c w d v e", "u", "t f", "s", "r g", "q"], ["a", "c e g", "i k", "m o q", "s", "u w y"]]
PAIRS, TUPLES = [ANCHORS, POSITIVES], [ANCHORS, POSITIVES, *NEGATIVES]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Made once: a tokeniser of one word a letter, and a BERT of one layer, in float64."""
    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, initializer_range=0.3, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2,
    )  # fmt: skip
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    transformer = Transformer(str(folder))
    return st.SentenceTransformer(modules=[transformer, Pooling(24)], device="cpu").double()


@pytest.fixture
def model(built):
    return copy.deepcopy(built).train()


def texts(model, columns):
    return [model.preprocess(column) for column in columns]


def value_and_gradients(loss, columns, scale=1.0, seed=7):
    """What ``loss`` gives for ``columns`` with the dropout of ``seed``."""
    loss.model.zero_grad()
    torch.manual_seed(seed)
    value = loss(texts(loss.model, columns), None)
    (value * scale).backward()
    gradients = {name: p.grad.clone() for name, p in loss.model.named_parameters() if p.grad is not None}
    assert any(gradient.abs().max() > 1e-3 for gradient in gradients.values())
    return value.detach(), gradients


def theirs(model, *, cached=None, dims=DIMS, weights=None, symmetric=False, scale=20.0):
    options = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"} if symmetric else {}
    if cached is None:
        inner = losses.MultipleNegativesRankingLoss(model, scale=scale, **options)
    else:
        inner = losses.CachedMultipleNegativesRankingLoss(model, scale=scale, mini_batch_size=cached, **options)
    return losses.MatryoshkaLoss(model, inner, dims, weights)


CASES = {
    "pairs": (PAIRS, {}),
    "hard negatives": (TUPLES, {}),
    "weights": (TUPLES, {"weights": [0.5, 2.0, 1.0]}),
    "symmetric": (TUPLES, {"symmetric": True}),
    "scale": (PAIRS, {"scale": 3.5}),
    "not all columns": (PAIRS, {"dims": [7, 3]}),
    "one dim": (PAIRS, {"dims": [24]}),
}


@pytest.mark.parametrize("cached", [None, 4], ids=["whole", "cached"])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_matryoshka_loss(model, case, cached):
    columns, options = CASES[case]
    wanted = value_and_gradients(theirs(model, cached=cached, **options), columns)
    loss = NestedRankingLoss(model, **{"nesting": DIMS, "mini_batch_size": cached} | renamed(options))
    got = value_and_gradients(loss, columns)
    # Before 6.2 their cached gradients pass through float32.
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11 if cached is None else 1e-6)


@pytest.mark.parametrize("engine", ["plain", "chunked"])
def test_every_engine_gives_the_same(model, engine):
    wanted = value_and_gradients(theirs(model), TUPLES)
    got = value_and_gradients(NestedRankingLoss(model, DIMS, engine=engine), TUPLES)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)


def renamed(options):
    return {"nesting" if key == "dims" else key: value for key, value in options.items()}


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("columns", [PAIRS, TUPLES], ids=["pairs", "tuples"])
def test_cached_equals_whole(model, size, columns):
    model.eval()   # dropout draws other numbers for mini batches than for the whole
    wanted = value_and_gradients(NestedRankingLoss(model, DIMS), columns, scale=0.25)
    got = value_and_gradients(NestedRankingLoss(model, DIMS, mini_batch_size=size), columns, scale=0.25)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


class Careless(nn.Module):
    """Leaves out the first token of each text, and forgets its outputs and that in what it was given."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 24, dtype=torch.float64)

    def forward(self, given):
        mask = given["attention_mask"]
        mask *= mask.cumsum(1) > 1
        given["token_embeddings"] = self.table(given["input_ids"]) * mask[..., None]
        given["sentence_embedding"] = given["token_embeddings"].sum(1)
        return given


def test_self_distillation_reaches_the_loss_cached_or_not(model):
    plain, taught, cached = (
        value_and_gradients(NestedRankingLoss(model, DIMS, self_distil=share, mini_batch_size=size), PAIRS)[0]
        for share, size in ((0.0, None), (0.5, None), (0.5, 6))
    )
    assert abs(plain - taught) > 1e-3
    torch.testing.assert_close(taught, cached)


def test_a_model_may_write_into_its_inputs(model):
    careless = Careless()
    found = []
    for size in (None, 4):
        careless.zero_grad()
        columns = texts(model, PAIRS)
        NestedRankingLoss(careless, DIMS, mini_batch_size=size)(columns).backward()
        found.append(careless.table.weight.grad.clone())
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)
    assert "token_embeddings" not in columns[0]


def test_a_nesting_and_lists_in_any_order_are_the_same(model):
    wanted = value_and_gradients(NestedRankingLoss(model, Nesting([5, 12, 24], weights=[2.0, 1.0, 0.5])), PAIRS)
    got = value_and_gradients(NestedRankingLoss(model, [24, 5, 12], [0.5, 2.0, 1.0]), PAIRS)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_each_text_is_embedded_once_and_the_model_is_left_alone(model):
    seen = []
    model[1].register_forward_hook(lambda _module, _inputs, out: seen.append(len(out["sentence_embedding"])))
    before = dict(vars(model))
    NestedRankingLoss(model, DIMS)(texts(model, TUPLES))
    assert seen == [6, 18]   # the anchors; then all candidates together
    assert vars(model) == before


def test_columns_with_other_prompts_are_embedded_one_by_one(model):
    model.eval()
    columns = [model.preprocess(column) for column in TUPLES]
    columns[2]["prompt_length"] = 3
    got = NestedRankingLoss(model, DIMS)(columns)
    torch.testing.assert_close(got, NestedRankingLoss(model, DIMS)(texts(model, TUPLES)), rtol=1e-12, atol=0)


def test_evaluation_needs_no_gradients(model):
    model.eval()
    with torch.no_grad():
        whole = NestedRankingLoss(model, DIMS)(texts(model, PAIRS))
        cached = NestedRankingLoss(model, DIMS, mini_batch_size=2)(texts(model, PAIRS))
    assert not cached.requires_grad
    torch.testing.assert_close(cached, whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [None, 4])
def test_a_plain_loop_learns_the_same_as_with_their_loss(model, size):
    twin = copy.deepcopy(model)
    histories = []
    for loss in (NestedRankingLoss(model, DIMS, mini_batch_size=size), theirs(twin, cached=size)):
        torch.manual_seed(3)
        optimizer = torch.optim.SGD(loss.parameters(), lr=0.02)
        history = []
        for _ in range(8):
            optimizer.zero_grad()
            value = loss(texts(loss.model, TUPLES), None)
            value.backward()
            optimizer.step()
            history.append(value.item())
        histories.append(history)
    assert histories[0][-1] < histories[0][0] / 2
    assert histories[0] == pytest.approx(histories[1], rel=1e-5)


@pytest.mark.parametrize("size", [None, 2])
def test_the_trainer_learns_the_same_as_with_their_loss(model, size, tmp_path):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("accelerate")
    data = datasets.Dataset.from_dict({"anchor": ANCHORS, "positive": POSITIVES, "negative": NEGATIVES[0]})
    twin = copy.deepcopy(model)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for loss in (NestedRankingLoss(model, DIMS, mini_batch_size=size), theirs(twin, cached=size)):
        arguments = st.SentenceTransformerTrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=3, num_train_epochs=1, learning_rate=0.01, seed=1,
            report_to="none", save_strategy="no", logging_steps=1, use_cpu=True, disable_tqdm=True, optim="adamw_torch",
        )  # fmt: skip
        trainer = st.SentenceTransformerTrainer(loss.model, arguments, train_dataset=data, loss=loss)
        assert trainer.train().global_step == 2
    assert any(not torch.equal(value, start[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=1e-4, atol=1e-5)
    card = model.model_card_data
    assert "loss:NestedRankingLoss" in card.tags
    assert any("Matryoshka Representation Learning" in citation for citation in card.citations.values())


@pytest.mark.parametrize("cached", [None, 4], ids=["whole", "cached"])
def test_like_takes_over_the_settings(model, cached):
    original = theirs(model, cached=cached, weights=[0.5, 2.0, 1.0], symmetric=True, scale=5.0)
    loss = NestedRankingLoss.like(original)
    assert loss.model is model
    assert loss.get_config_dict() == {
        "dims": (5, 12, 24), "weights": (2.0, 1.0, 0.5), "scale": 5.0, "symmetric": True,
        "mini_batch_size": cached, "gather": False,
    }  # fmt: skip
    torch.testing.assert_close(
        value_and_gradients(loss, TUPLES), value_and_gradients(original, TUPLES), rtol=1e-9, atol=1e-6
    )


def test_of_unit_vectors_the_dot_product_is_the_cosine(model):
    original = losses.MatryoshkaLoss(
        model, losses.MultipleNegativesRankingLoss(model, similarity_fct=st.util.dot_score), DIMS
    )
    wanted = value_and_gradients(original, PAIRS)
    torch.testing.assert_close(value_and_gradients(NestedRankingLoss.like(original), PAIRS), wanted)


EVERY_WAY = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


@pytest.mark.parametrize(
    ("options", "outer", "rule"),
    [
        ({}, {"n_dims_per_step": 2}, r"every step computes all dims \(got n_dims_per_step=2\): set n_"),
        ({"directions": EVERY_WAY}, {}, 'directions must be "query_to_doc", or it and "doc_to_query" with'),
        ({"directions": ("query_to_doc", "doc_to_query")}, {}, r"partition_mode=\"per_direction\" \(got .*joint\)"),
        ({"similarity_fct": st.util.euclidean_sim}, {}, r"must be the cosine \(got euclidean_sim\): use cos_sim"),
        ({"hardness_mode": "all_negatives", "hardness_strength": 5.0}, {}, "cannot be weighted .*all_negatives"),
        ({"mini_batch_num_tokens": 64}, {}, r"must be in texts \(got mini_batch_num_tokens=64\)"),
    ],
)
def test_like_names_what_has_no_equal_here(model, options, outer, rule):
    kind = losses.CachedMultipleNegativesRankingLoss
    original = losses.MatryoshkaLoss(model, kind(model, **options), DIMS, **outer)
    with pytest.raises(InputError, match=rule):
        NestedRankingLoss.like(original)


def test_like_takes_a_subclass_for_its_settings_and_names_what_it_computes_anew(model):
    class Sharp(losses.MultipleNegativesRankingLoss):
        def __init__(self, model):
            super().__init__(model, scale=40.0)

    class Doubled(Sharp):
        def forward(self, *args, **kwargs):
            return 2 * super().forward(*args, **kwargs)

    assert NestedRankingLoss.like(losses.MatryoshkaLoss(model, Sharp(model), DIMS)).scale == 40
    with pytest.raises(InputError, match=r"a subclass must not override methods \(got Doubled with its own forward\)"):
        NestedRankingLoss.like(losses.MatryoshkaLoss(model, Doubled(model), DIMS))


def test_like_names_another_loss(model):
    for original, got in (
        (losses.MatryoshkaLoss(model, losses.CoSENTLoss(model), DIMS), "MatryoshkaLoss over CoSENTLoss"),
        (losses.MultipleNegativesRankingLoss(model), "got MultipleNegativesRankingLoss"),
    ):
        with pytest.raises(InputError, match=f"must be a MatryoshkaLoss over .*{got}"):
            NestedRankingLoss.like(original)


def test_bad_arguments_are_named(model):
    with pytest.raises(NestingError, match="must not exceed the 24 dimensions"):
        NestedRankingLoss(model, [12, 48])
    with pytest.raises(NestingError, match=r"dims must be a list \(got 16\): pass \[16\]"):
        NestedRankingLoss(model, 16)
    with pytest.raises(NestingError, match=r"a Nesting already has weights \(got \[1, 1\]\)"):
        NestedRankingLoss(model, Nesting([12, 24]), [1, 1])
    with pytest.raises(NestingError, match=r"one value per dim \(got 1 weights for \[24, 12\]\)"):
        NestedRankingLoss(model, [24, 12], [1.0])
    with pytest.raises(InputError, match=r"scale must be positive \(got 0\)"):
        NestedRankingLoss(model, DIMS, scale=0)
    with pytest.raises(InputError, match=r"mini_batch_size must be positive \(got 0\)"):
        NestedRankingLoss(model, DIMS, mini_batch_size=0)
    with pytest.raises(InputError, match=r"columns anchor and positive.*\(got 1 columns\)"):
        NestedRankingLoss(model, DIMS)(texts(model, [ANCHORS]))


def test_the_papers_are_named(model):
    assert "gao2021scaling" not in NestedRankingLoss(model, DIMS).citation
    assert "gao2021scaling" in NestedRankingLoss(model, DIMS, mini_batch_size=2).citation
    assert isinstance(NestedRankingLoss(model, DIMS), nn.Module)
