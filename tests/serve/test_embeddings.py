"""POST /v1/embeddings: the vectors are those of the model, and the known defects of other servers are not ours."""

import asyncio
import base64

import numpy as np
import pytest
import torch

from conftest import WORDS, acall, call
from matryo import truncate
from matryo.data import Tokenizer
from matryo.encoders import Bert, Tokens
from matryo.encoders.bert.packed import PackedBert
from matryo.serve import Limits, app

TEXTS = ["cat", "dog bark moon", " ".join(WORDS[:9]), "sun"]


@pytest.fixture(scope="module")
def served(model_folder):
    service = app(model_folder, limits=Limits(items=8, tokens=200, bytes=4000))
    yield service
    service.close()


@pytest.fixture(scope="module")
def oracle(model_folder):
    """The vectors of texts by the padded BERT, one text at a time."""
    tokenizer, bert = Tokenizer.open(model_folder), Bert.open(model_folder).eval()

    def vectors(texts, dim):
        with torch.inference_mode():
            ids = [torch.from_numpy(tokenizer.encode([text], 16)[0]).long() for text in texts]
            masks = [torch.from_numpy(tokenizer.encode([text], 16)[1]) for text in texts]
            z = torch.cat([bert(Tokens(*pair)) for pair in zip(ids, masks, strict=True)]).numpy()
        return truncate(z, dim)

    return vectors


def ask(served, **fields):
    return call(served, "POST", "/v1/embeddings", {"model": "tiny", **fields})


def floats(answer):
    return np.array([entry["embedding"] for entry in answer.json["data"]], np.float32)


@pytest.mark.parametrize("dim", [128, 32, 8, 5, 1])
def test_prefixes_are_truncated_then_normalised(served, oracle, dim):
    answer = ask(served, input=TEXTS, dimensions=dim)
    assert answer.status == 200 and answer.json["object"] == "list" and answer.json["model"] == "tiny"
    assert [entry["index"] for entry in answer.json["data"]] == [0, 1, 2, 3]
    np.testing.assert_allclose(floats(answer), oracle(TEXTS, dim), atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(floats(answer), axis=1), 1, atol=1e-5)  # infinity #538
    note = answer.headers.get("x-matryo-untrained-dims")
    assert note == (None if dim in (8, 32, 128) else f"{dim}; trained: 8, 32, 128")


def test_the_default_is_the_full_dim_and_usage_counts_what_was_read(served, oracle):
    answer = ask(served, input="dog bark moon", user="somebody", dimensions=None)
    np.testing.assert_allclose(floats(answer), oracle(["dog bark moon"], 128), atol=2e-6)
    assert answer.json["usage"] == {"prompt_tokens": 5, "total_tokens": 5}  # with [CLS] and [SEP]


def test_base64_is_little_endian_float32_of_the_wanted_length(served):  # LocalAI #9135
    wanted = floats(ask(served, input=TEXTS, dimensions=8))
    entries = ask(served, input=TEXTS, dimensions=8, encoding_format="base64").json["data"]
    raw = [base64.b64decode(entry["embedding"]) for entry in entries]
    assert {len(one) for one in raw} == {4 * 8}
    np.testing.assert_array_equal(np.array([np.frombuffer(one, "<f4") for one in raw]), wanted)


def test_int8_and_binary_approximate_the_floats(served):
    wanted = floats(ask(served, input=TEXTS, dimensions=32))
    entries = ask(served, input=TEXTS, dimensions=32, encoding_format="int8").json["data"]
    codes = np.array([np.frombuffer(base64.b64decode(entry["embedding"]), np.int8) for entry in entries])
    scales = np.array([entry["scale"] for entry in entries])
    assert np.abs(codes * scales[:, None] - wanted).max() <= scales.max() / 2 + 1e-6
    bits = ask(served, input=TEXTS, dimensions=32, encoding_format="binary").json["data"]
    packed = np.array([np.frombuffer(base64.b64decode(entry["embedding"]), np.uint8) for entry in bits])
    np.testing.assert_array_equal(np.unpackbits(packed, axis=1), wanted > 0)


def test_several_sizes_come_from_one_pass(served):
    passes = count_passes(served)
    entries = ask(served, input=TEXTS, dimensions=[8, 128]).json["data"]
    assert len(passes) == 1
    for row, entry in enumerate(entries):
        for dim in (8, 128):
            single = floats(ask(served, input=TEXTS, dimensions=dim))[row]
            np.testing.assert_allclose(entry["embeddings"][str(dim)]["embedding"], single, atol=2e-6)


def count_passes(served):
    encoder, passes = served.models.find("tiny").encoder, []
    usual = type(encoder).embed_tokens
    encoder.embed_tokens = lambda ids: (passes.append(len(ids)), usual(encoder, ids))[1]
    return passes


def test_requests_of_different_dims_share_passes_and_each_gets_its_own(served, oracle):  # typesense #2722
    passes = count_passes(served)

    async def all_at_once():
        fields = [{"model": "tiny", "input": "sun moon", "dimensions": dim} for dim in (3, 8, 32, 128) * 6]
        return await asyncio.gather(*(acall(served, "POST", "/v1/embeddings", one) for one in fields))

    answers = asyncio.run(all_at_once())
    for dim, answer in zip((3, 8, 32, 128) * 6, answers, strict=True):
        np.testing.assert_allclose(floats(answer), oracle(["sun moon"], dim), atol=2e-6)
    assert sum(passes) == 24 and len(passes) < 12


def test_batches_side_by_side_give_the_same_vectors_also_after_a_reload(model_folder, oracle):
    texts = [" ".join(WORDS[n % 11 : n % 11 + 1 + n % 4]) for n in range(60)]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    service = app(model_folder, alone=True, limits=Limits(step=0.001))

    async def all_at_once():
        bodies = [{"model": "tiny", "input": text} for text in texts]
        return await asyncio.gather(*(acall(service, "POST", "/v1/embeddings", body) for body in bodies))

    try:
        for _ in range(2):
            assert service.models.find("tiny").lanes == 2
            answers = asyncio.run(all_at_once())
            np.testing.assert_allclose(np.concatenate([floats(one) for one in answers]), oracle(texts, 128), atol=2e-6)
            asyncio.run(service.reload())   # after the lanes have changed the number of threads
    finally:
        service.close()
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"dimensions": 129}, "dimensions"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": "8"}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"dimensions": []}, "dimensions"),
        ({"dimensions": [8, 999]}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"truncate_dim": 8}, "truncate_dim"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["cat", ""]}, "input"),
        ({"input": ["cat", 3]}, "input"),
        ({"input": {"text": "cat"}}, "input"),
        ({"input": [5, 6]}, "input"),
        ({"input": [[5, 6]]}, "input"),
        ({"input": ["cat"] * 9}, "input"),
        ({"input": ["cat " * 300]}, "input"),
        ({"tokenizer": "gpt"}, "tokenizer"),
        ({"input_type": "passage"}, "input_type"),
        ({"input": "data:image/png;base64,AAAA"}, "input"),
        ({"input": None}, "input"),
        ({"user": 7}, "user"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused(served, fields, param):  # llama.cpp #25210 ignored dimensions
    answer = ask(served, **{"input": "cat", **fields})
    assert answer.status == 400
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param and error["type"] == "invalid_request_error"


def test_an_unknown_model_is_404_with_the_models_that_are_there(served):
    error = call(served, "POST", "/v1/embeddings", {"model": "other", "input": "cat"})
    assert (error.status, error.json["error"]["code"]) == (404, "model_not_found")
    assert "tiny" in error.json["error"]["message"]


def test_token_ids_are_read_only_by_a_client_that_names_the_tokenizer(served, model_folder):
    listed = call(served, "GET", "/v1/models").json["data"][0]
    ids = Tokenizer.open(model_folder).flat(["dog bark moon"])[0].tolist()
    given = ask(served, input=ids, tokenizer=listed["tokenizer"])
    np.testing.assert_allclose(floats(given), floats(ask(served, input="dog bark moon")), atol=2e-6)
    for wrong in ([-1, 2], [10**6], list(range(17)), [1.5], []):
        assert ask(served, input=[wrong], tokenizer=listed["tokenizer"]).status == 400


def test_long_texts_are_truncated_and_the_answer_says_so(served, oracle):
    long = " ".join(WORDS * 3)
    answer = ask(served, input=["cat", long])
    assert answer.headers["x-matryo-truncated-inputs"] == "1"
    np.testing.assert_allclose(floats(answer), oracle(["cat", long], 128), atol=2e-6)
    refused = ask(served, input=["cat", long], truncate=False)
    assert (refused.status, refused.json["error"]["code"]) == (400, "context_length_exceeded")


def test_input_type_selects_the_prompt(served):
    query = floats(ask(served, input="dog", input_type="query"))
    np.testing.assert_allclose(query, floats(ask(served, input="cat dog")), atol=2e-6)
    np.testing.assert_allclose(
        floats(ask(served, input="dog", input_type="document")), floats(ask(served, input="dog")), atol=2e-6
    )


def test_models_are_listed_with_their_dims(served):
    (model,) = call(served, "GET", "/v1/models").json["data"]
    assert model["id"] == "tiny" and model["object"] == "model"
    assert (model["dims"], model["pooling"], model["max_length"]) == ([8, 32, 128], "mean", 16)
    assert call(served, "GET", "/v1/models/tiny").json == model
    assert call(served, "GET", "/v1/models/nope").status == 404


def test_a_reload_swaps_the_model_and_serves_on(served, oracle):
    before = served.models.find("tiny")
    asyncio.run(served.reload())
    assert served.models.find("tiny") is not before and not before.batcher.alive
    np.testing.assert_allclose(floats(ask(served, input="moon")), oracle(["moon"], 128), atol=2e-6)


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("kind", ["mean gelu", "cls gelu_new", "last relu", "mean silu"])
def test_a_packed_batch_equals_each_text_alone(kind, onednn, monkeypatch):
    from matryo.encoders import BertConfig

    torch.manual_seed(1)
    pooling, act = kind.split()
    config = BertConfig.named("bert-tiny", vocab_size=50, hidden_act=act, initializer_range=0.2)   # far from linear
    bert = Bert(config, pooling=pooling).eval()
    if not onednn:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with torch.inference_mode():
        packed = PackedBert(bert)
        for counts in ([5], [4, 4], [1, 9, 3, 9], [120, 5, 130, 3, 512, 2]):   # attention takes 64 tokens at a time
            ids = [torch.randint(50, (count,)) for count in counts]
            alone = torch.cat([bert(Tokens(one[None])) for one in ids])
            torch.testing.assert_close(packed(torch.cat(ids), torch.tensor(counts)), alone, atol=1e-5, rtol=1e-4)
