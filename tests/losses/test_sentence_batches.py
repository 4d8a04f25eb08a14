"""Tokenised texts cut and joined: what a model makes of the parts is what it makes of the whole."""

from itertools import pairwise

import pytest
import torch

from matryo.errors import InputError
from matryo.losses.sentence_transformers.batches import join, split

LENGTHS = [3, 1, 5, 2, 4]


def padded(lengths=LENGTHS, width=None):
    width = width or max(lengths)
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    ids = torch.arange(1, mask.numel() + 1).view_as(mask) * mask
    return {"input_ids": ids, "attention_mask": mask, "modality": "text"}


def unpadded(lengths=LENGTHS):
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    total = sum(lengths)
    return {
        "input_ids": torch.arange(1, total + 1)[None],
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "seq_idx": torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])[None],
        "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": max(lengths), "max_length_k": max(lengths),
        "prompt_length": 2,
    }  # fmt: skip


def sums(texts):
    """A model: the sum of each text's tokens."""
    if "cu_seq_lens_q" not in texts:
        return (texts["input_ids"] * texts["attention_mask"]).sum(1)
    bounds = texts["cu_seq_lens_q"].tolist()
    return torch.stack([texts["input_ids"][0, a:b].sum() for a, b in pairwise(bounds)])


@pytest.mark.parametrize("size", [1, 2, 5, 9])
@pytest.mark.parametrize("make", [padded, unpadded])
def test_parts_give_what_the_whole_gives(make, size):
    parts = split(make(), size)
    assert torch.equal(torch.cat([sums(part) for part in parts]), sums(make()))
    assert len(parts) == -(-len(LENGTHS) // size)


def test_a_part_ends_with_its_longest_text():
    assert [part["input_ids"].shape for part in split(padded(width=8), 2)] == [(2, 3), (2, 5), (1, 4)]
    left = padded()
    left = left | {key: left[key].flip(1) for key in ("input_ids", "attention_mask")}
    assert [part["input_ids"].shape for part in split(left, 2)] == [(2, 5), (2, 5), (1, 5)]   # positions count from it
    empty = {"input_ids": torch.zeros(2, 3), "attention_mask": torch.zeros(2, 3)}
    assert split(empty, 2)[0]["input_ids"].shape == (2, 3)


def test_an_unpadded_part_is_the_batch_of_its_texts():
    parts, wanted = split(unpadded(), 2), [unpadded(LENGTHS[low : low + 2]) for low in (0, 2, 4)]
    for part, want in zip(parts, wanted, strict=True):
        assert part.keys() == want.keys()
        for key in want.keys() - {"input_ids"}:
            assert torch.equal(torch.as_tensor(part[key]), torch.as_tensor(want[key])), key


@pytest.mark.parametrize("prompt", [2, torch.tensor(2), torch.tensor([2]), torch.tensor([2] * 5)])
def test_the_length_of_a_prompt_stays_with_each_part(prompt):
    for part in split(padded() | {"prompt_length": prompt}, 2):
        assert torch.as_tensor(part["prompt_length"]).flatten()[0] == 2


def test_what_has_no_row_a_text_is_named():
    images = padded() | {"pixel_values": torch.zeros(12, 4)}
    with pytest.raises(InputError, match=r"one row per text \(got pixel_values of shape \(12, 4\) for 5 texts\)"):
        split(images, 2)
    with pytest.raises(InputError, match=r"one row per text \(got offsets of shape \(2,\) for 7 texts\)"):
        split({"input_ids": torch.arange(7), "offsets": torch.tensor([0, 3])}, 2)
    with pytest.raises(InputError, match=r"must contain tensors \(got \['modality'\]\)"):
        split({"modality": "text"}, 2)


def test_joined_columns_are_padded_alike():
    one, two = padded(), padded([2, 7, 1, 1, 1])
    joined = join([one, two])
    assert joined["input_ids"].shape == (10, 7)
    assert joined["modality"] == "text"
    assert torch.equal(sums(joined), torch.cat([sums(one), sums(two)]))
    pixels = torch.arange(20.0).view(5, 4)
    assert torch.equal(join([one | {"x": pixels}, two | {"x": pixels}])["x"], torch.cat([pixels, pixels]))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (padded(), padded() | {"more": 1}),
        (padded() | {"prompt_length": 2}, padded() | {"prompt_length": 3}),
        (padded() | {"prompt_length": torch.tensor([2])}, padded() | {"prompt_length": 2}),
        (padded() | {"things": [object()]}, padded() | {"things": [object()]}),
        (padded(), padded([1, 2, 3])),
        (padded() | {"x": torch.zeros(5, 2)}, padded() | {"x": torch.zeros(5, 3)}),
        (padded() | {"x": torch.zeros(5, 2, 2)}, padded() | {"x": torch.zeros(5, 2, 3)}),
        (padded() | {"x": torch.zeros(5, 2)}, padded() | {"x": torch.zeros(5)}),
        (unpadded(), unpadded()),
        ({"input_ids": torch.arange(5)}, {"input_ids": torch.arange(5)}),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_not_joined(one, two):
    assert join([one, two]) is None
