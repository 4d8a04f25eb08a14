"""Tokenizers: trained, opened, saved; ids are those of transformers, rows are padded as said."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matryo.data import Tokenizer
from matryo.errors import DataError, MissingExtra

pytest.importorskip("tokenizers")

TEXTS = [
    "The cat sat on the mat; the dog did not.",
    "A dog barks, a cat purrs, a bird sings.",
    "Ünïcödé is fun: naïve café, Kätzchen, 猫 and 犬!",
    "Repetition, repetition, repetition: the mother of learning.",
]
WHOLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS, vocabulary=200)


def test_special_tokens_are_those_of_bert(tokenizer):
    assert tokenizer.special == {0, 1, 2, 3, 4}
    assert (tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask) == (0, 2, 3, 4)
    assert len(TEXTS) < tokenizer.vocabulary <= 200
    assert repr(tokenizer) == f"Tokenizer('tokenizer', {tokenizer.vocabulary} ids)"


def test_the_vocabulary_is_bounded_and_frequent_words_are_whole():
    tiny, small, large = (Tokenizer.train(TEXTS, vocabulary=size) for size in (9, 110, 300))
    assert tiny.vocabulary <= 9 < small.vocabulary <= 110 < large.vocabulary <= 300
    _, mask = large.encode(["repetition"], 16)
    assert mask.sum() == 3


def test_training_on_the_same_texts_gives_the_same_tokenizer(tmp_path):
    """In another process too, where the library's random hashes differ; and from an iterator."""
    code = (
        "import sys, json; from matryo.data import Tokenizer\n"
        "Tokenizer.train(iter(json.loads(sys.argv[1])), vocabulary=150).save(sys.argv[2])"
    )
    for name in ("one", "two"):
        subprocess.run([sys.executable, "-c", code, json.dumps(TEXTS), str(tmp_path / name)], check=True)
    Tokenizer.train(TEXTS, vocabulary=150).save(tmp_path / "three")
    one, two, three = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("one", "two", "three"))
    assert one == two == three


def test_ids_are_those_of_the_library_of_bert(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), pad_token="[PAD]")
    some = [*TEXTS, "", "unknown ☃ words here"]
    expected = theirs(some, max_length=12, truncation=True, padding="max_length", return_tensors="np")
    ids, mask = tokenizer.encode(some, 12)
    assert ids.dtype == np.int32
    assert mask.dtype == np.bool_
    assert np.array_equal(ids, expected["input_ids"])
    assert np.array_equal(mask, expected["attention_mask"].astype(bool))


def test_lower_case_and_accents(tokenizer):
    assert np.array_equal(tokenizer.encode(["THE CAFÉ"], 16)[0], tokenizer.encode(["the cafe"], 16)[0])
    cased = Tokenizer.train(TEXTS, vocabulary=200, lowercase=False)
    assert not np.array_equal(cased.encode(["The"], 16)[0], cased.encode(["the"], 16)[0])
    assert cased.decode(cased.encode(["naïve café"], 32)[0][0]) == "naïve café"


@settings(deadline=None, max_examples=50)
@given(st.lists(WHOLE, max_size=6), st.integers(3, 40))
def test_rows_are_padded_to_a_multiple_of_eight_within_the_length(tokenizer, texts, length):
    ids, mask = tokenizer.encode(texts, length)
    flat, offsets = tokenizer.flat(texts, length)
    sizes = np.diff(offsets)
    assert ids.shape == mask.shape == (len(texts), min(length, -(-int(sizes.max(initial=1)) // 8) * 8))
    assert mask.sum(1).tolist() == sizes.tolist()
    for row, own, real in zip(ids, mask, sizes, strict=True):
        assert 2 <= real <= length
        assert own[:real].all() and not own[real:].any()
        assert row[0] == tokenizer.cls
        assert row[real - 1] == tokenizer.sep
        assert (row[real:] == tokenizer.pad).all()
        assert (row < tokenizer.vocabulary).all()
    assert np.array_equal(flat, ids[mask])
    assert flat.dtype == np.int32
    assert offsets.dtype == np.int64


def test_whole_texts_without_a_length(tokenizer):
    long = " ".join(TEXTS * 50)
    whole, offsets = tokenizer.flat([long, "a"])
    assert offsets[1] > 512
    cut, _ = tokenizer.flat([long], 64)
    assert np.array_equal(cut[:-1], whole[:63])
    again, _ = tokenizer.flat(iter([long, "a"]))
    assert np.array_equal(whole, again), "a length given once is not remembered"


def test_many_texts_are_the_same_as_one_at_a_time(tokenizer):
    texts = [f"{text} {i}" for i in range(600) for text in TEXTS]
    flat, offsets = tokenizer.flat(texts, 32)
    for i in (0, 1023, 1024, 2399):
        assert np.array_equal(flat[offsets[i] : offsets[i + 1]], tokenizer.flat([texts[i]], 32)[0])


def test_saved_and_opened_again(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "deep" / "tokenizer.json")
    tokenizer.save(tmp_path / "folder")
    for path in (tmp_path / "deep" / "tokenizer.json", tmp_path / "folder"):
        again = Tokenizer.open(path)
        assert np.array_equal(again.encode(TEXTS, 32)[0], tokenizer.encode(TEXTS, 32)[0])
        assert again.special == tokenizer.special
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["tokenizer.json"]


def test_padding_and_length_that_a_file_asks_for_are_not_its_to_decide(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    stored["truncation"] = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    stored["padding"] = {"strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                         "pad_type_id": 0, "pad_token": "[PAD]"}  # fmt: skip
    path.write_text(json.dumps(stored), encoding="utf-8")
    assert np.array_equal(Tokenizer.open(path).encode(TEXTS, 32)[0], tokenizer.encode(TEXTS, 32)[0])


@pytest.mark.parametrize("accents", [None, False, True])
@pytest.mark.parametrize("chinese", [False, True])
def test_old_berts_say_what_becomes_of_accents_and_chinese(tmp_path, accents, chinese):
    transformers = pytest.importorskip("transformers")
    pieces = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "café", "cafe", "漢", "##字", "字", "漢字"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    settings = {"do_lower_case": True, "strip_accents": accents, "tokenize_chinese_chars": chinese}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), **settings)
    ours = Tokenizer.open(tmp_path)
    assert ours.flat(["Café 漢字"])[0].tolist() == theirs("Café 漢字")["input_ids"]


@pytest.mark.parametrize("lower", [True, False])
def test_old_berts_have_a_vocab_txt(tmp_path, lower):
    pieces = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "cat", "##s", "!"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    tokenizer = Tokenizer.open(tmp_path)
    ids, _ = tokenizer.encode(["The cats!", "dogs"], 16)
    the = pieces.index("the" if lower else "The")
    assert ids.tolist() == [[3, the, 8, 9, 10, 4, 0, 0], [3, 2, 4, 0, 0, 0, 0, 0]]
    assert (tokenizer.mask, tokenizer.vocabulary, tokenizer.special) == (5, 11, {0, 2, 3, 4, 5})


def other(tmp_path, tokens):
    """A tokenizer of another family, with these special tokens, opened."""
    import tokenizers

    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    inner.add_special_tokens(tokens)
    inner.save(str(tmp_path / "tokenizer.json"))
    return Tokenizer.open(tmp_path)


@pytest.mark.parametrize("inside", ["", "0_Transformer"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("cased", [False, True])
def test_a_sentence_transformers_folder_is_read_as_that_library_reads_it(tmp_path, inside, lower, cased):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / inside
    Tokenizer.train(TEXTS, vocabulary=200, lowercase=not cased).save(folder / "tokenizer.json")
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 32}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": lower}))
    shape = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    transformers.BertModel(transformers.BertConfig(vocab_size=200, **shape)).save_pretrained(folder)
    first = {"idx": 0, "name": "0", "path": inside, "type": "sentence_transformers.models.Transformer"}
    (tmp_path / "modules.json").write_text(json.dumps([first]))
    library = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    wanted = library.tokenize(TEXTS)
    ids, mask = Tokenizer.open(tmp_path).encode(TEXTS, 32)
    for ours, kept, theirs, real in zip(ids, mask, wanted["input_ids"], wanted["attention_mask"], strict=True):
        assert ours[kept].tolist() == theirs[real == 1].tolist()


def test_other_families_spell_special_tokens_otherwise(tmp_path):
    tokenizer = other(tmp_path, ["<s>", "<pad>", "</s>", "<mask>"])
    assert (tokenizer.cls, tokenizer.pad, tokenizer.sep, tokenizer.mask) == (2, 3, 4, 5)
    assert tokenizer.vocabulary == 6
    ids, mask = tokenizer.encode(["a", ""], 8)
    assert mask.sum(1).tolist() == [1, 0]
    assert ids.tolist() == [[0] + [3] * 7, [3] * 8]


def test_a_tokenizer_without_a_mask_says_so_when_it_is_needed(tmp_path, refuses):
    tokenizer = other(tmp_path, ["<|endoftext|>"])
    assert tokenizer.pad == tokenizer.sep == 2
    with refuses("this needs a tokenizer with a mask token, one of [MASK], <mask>", "none in", "train one"):
        _ = tokenizer.mask


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda t, _: t.encode(["a"], 2), ["length must leave room for the 2 special tokens", "got 2", "use 3"]),
        (lambda t, _: t.encode("a text", 8), ["texts must be a list", "'a text'"]),
        (lambda *_: Tokenizer.train(TEXTS, vocabulary=5), ["more than its 5 special tokens", "got 5"]),
        (lambda *_: Tokenizer.train("a text"), ["texts must be a list", "'a text'"]),
        (lambda *_: Tokenizer.train([" ", ""]), ["a tokenizer must be trained on words", "texts without words"]),
        (lambda _, path: Tokenizer.open(path), ["a tokenizer must be a tokenizer.json", "holds neither"]),
        (lambda _, path: Tokenizer.open(path / "x.json"), ["a tokenizer must be a tokenizer.json", "does not exist"]),
    ],
)
def test_what_is_refused(tokenizer, tmp_path, refuses, ask, words):
    with refuses(*words):
        ask(tokenizer, tmp_path)


def test_damaged_files(tmp_path, refuses):
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with refuses("tokenizer.json cannot be read as a tokenizer", "copy the file again"):
        Tokenizer.open(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("[PAD]\nthe\n")
    with refuses("vocab.txt must contain the special tokens of BERT", "no [UNK]"):
        Tokenizer.open(tmp_path)


def test_without_the_library_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for make in (lambda: Tokenizer.train(["a"]), lambda: Tokenizer.open(tmp_path)):
        with pytest.raises(MissingExtra, match=r"this needs tokenizers: pip install 'matryo\[text\]'"):
            make()
    assert not issubclass(MissingExtra, DataError)
