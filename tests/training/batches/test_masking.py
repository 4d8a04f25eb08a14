"""Masking: a function of seed, epoch and window alone, in BERT's shares; windows hold the corpus in order."""

import numpy as np
import pytest
import torch

pytest.importorskip("tokenizers")

from texts_made import corpus, recipe, sentences, tokenizer

from matryo.data import text_dataset
from matryo.errors import DataError
from matryo.training.batches.masking import IGNORED, Masks, to_windows
from matryo.training.batches.open import open_batches
from matryo.training.batches.order import mix
from matryo.training.distributed import Group

CPU = torch.device("cpu")
MASKED = {"objective__kind": "masked", "head__kind": "tied"}


def windows(words, count=64, length=40, seed=0):
    rng = np.random.default_rng(seed)
    special = np.array(sorted(words.special))
    ordinary = np.setdiff1d(np.arange(words.vocabulary), special)
    ids = rng.choice(ordinary, (count, length))
    ids[:, 0], ids[:, -1] = words.cls, words.sep
    return torch.from_numpy(ids)


def test_windows_are_the_corpus_end_to_end():
    words, texts = tokenizer(), sentences(20, 9)
    split = text_dataset({"train": texts}).split("train")
    found = to_windows(split, words, 12)
    assert found.dtype == np.int32
    assert (found[:, 0] == words.cls).all()
    assert (found[:, -1] == words.sep).all()
    stream = []
    for text in texts:
        ids, kept = words.encode([text], 1000)
        stream += ids[0][kept[0]].tolist()[1:]   # without [CLS]; [SEP] stays, between documents
    inside = found[:, 1:-1].reshape(-1).tolist()
    assert inside == stream[: len(inside)]
    assert len(stream) - len(inside) < 10
    with pytest.raises(DataError, match=r"fill one window.*use a smaller --text.length"):
        to_windows(split, words, 10_000)


def test_the_masks_of_a_window_depend_on_seed_epoch_and_window_alone():
    words = tokenizer()
    ids, items = windows(words), torch.arange(64)
    masks = Masks(words, 0.15, 7, CPU)
    text, target = masks(ids, items, 3)
    shuffled = torch.randperm(64)
    again, target_again = Masks(words, 0.15, 7, CPU)(ids[shuffled], items[shuffled], 3)
    assert torch.equal(again.tokens.ids, text.tokens.ids[shuffled])
    assert torch.equal(target_again, target[shuffled])
    for other, epoch in ((Masks(words, 0.15, 8, CPU), 3), (masks, 4)):
        assert not torch.equal(other(ids, items, epoch)[0].places, text.places)
    padded = torch.cat([ids, torch.full((64, 8), words.pad)], 1)   # padding moves nothing
    longer, wider = masks(padded, items, 3)
    assert torch.equal(longer.tokens.ids[:, :40], text.tokens.ids)
    asked = [sorted(row[row != IGNORED].tolist()) for row in target]
    assert [sorted(row[row != IGNORED].tolist()) for row in wider] == asked


def test_what_is_hidden_is_told_and_special_tokens_never_are():
    words = tokenizer()
    ids = windows(words)
    ids[:, 5:30:3] = words.sep
    text, target = Masks(words, 0.2, 0, CPU)(ids, torch.arange(64), 0)
    asked = target != IGNORED
    assert torch.equal(ids.gather(1, text.places)[asked], target[asked])
    assert not torch.isin(target[asked], torch.tensor(sorted(words.special))).any()
    ordinary = ~torch.isin(ids, torch.tensor(sorted(words.special)))
    assert asked.sum(1).tolist() == [round(0.2 * n) for n in ordinary.sum(1).tolist()]
    untouched = torch.ones_like(ids, dtype=torch.bool).scatter(1, text.places, ~asked)
    assert torch.equal(text.tokens.ids[untouched], ids[untouched])
    assert all(len(set(row.tolist())) == len(row) for row in text.places)


def test_the_shares_are_berts():
    words = tokenizer()
    ids = windows(words, count=4000)
    text, target = Masks(words, 0.15, 0, CPU)(ids, torch.arange(4000), 0)
    asked = target != IGNORED
    shown = text.tokens.ids.gather(1, text.places)[asked]
    hidden = (shown == words.mask).float().mean().item()
    same = (shown == target[asked]).float().mean().item()
    count, ordinary = int(asked.sum()), words.vocabulary - len(words.special)
    assert count == 4000 * round(0.15 * 38)
    assert hidden == pytest.approx(0.8, abs=4 * (0.16 / count) ** 0.5)
    assert same == pytest.approx(0.1 + 0.1 / ordinary, abs=4 * (0.09 / count) ** 0.5)
    places = torch.bincount(text.places[asked], minlength=40)[1:-1]
    assert (places - count / 38).abs().max() < 5 * (count / 38) ** 0.5   # each place as often as another


def test_the_hash_on_the_device_is_the_one_of_numpy():
    words = tokenizer()
    items = torch.tensor([0, 1, 12345, 2**33])
    got = Masks(words, 0.15, 5, CPU)._draw(items, 6, 9, 2)
    key = mix(np.array([(5 << 32) ^ 9], np.uint64))
    places = np.arange(6, dtype=np.uint64) * np.uint64(4) + np.uint64(2)
    counter = items.numpy().astype(np.uint64)[:, None] * np.uint64(1 << 26) + places
    wanted = mix(counter ^ key) & np.uint64(2**63 - 1)
    assert np.array_equal(got.numpy().astype(np.uint64), wanted)


def test_batches_share_an_epoch_and_go_on_where_they_stopped():
    words, split = tokenizer(), corpus().split("train")

    def opened(batch, group):
        return open_batches(split, recipe(loop__batch=batch, **MASKED), group, progress=False, tokenizer=words)

    whole = list(opened(8, Group(0, 1, CPU)).epoch(2))
    assert len(whole) > 2
    rest = list(opened(8, Group(0, 1, CPU)).epoch(2, 2))
    halves = [list(opened(4, Group(rank, 2, CPU)).epoch(2)) for rank in (0, 1)]
    for step, (text, target) in enumerate(whole):
        if step >= 2:
            assert torch.equal(rest[step - 2][0].tokens.ids, text.tokens.ids)
        assert torch.equal(torch.cat([half[step][0].tokens.ids for half in halves]), text.tokens.ids)
        assert torch.equal(torch.cat([half[step][1] for half in halves]), target)
    with pytest.raises(DataError, match=r"fill one batch \(got \d+ windows of 16 tokens, a global batch of 4096\)"):
        opened(4096, Group(0, 1, CPU))
