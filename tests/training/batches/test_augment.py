"""Augmentation against numpy and Pillow done by hand, and the randomness it draws against what chance allows."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from matryo.training.batches import augment as module
from matryo.training.batches.augment import DRAWS, Normalise, augment, crop_box, draws
from matryo.training.batches.order import epoch_order
from matryo.training.recipe.fields import Augment

STILL = Augment(crop="none", flip=False)


def pictures(count=4, size=16, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8))


def smooth_pictures(count=4, size=16, seed=0):
    """Random but slowly varying, so that two resamplers of one grid nearly agree."""
    coarse = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, 3, 4, 4))).float()
    fine = F.interpolate(coarse, (size, size), mode="bilinear", align_corners=True)
    return fine.permute(0, 2, 3, 1).round().to(torch.uint8)


def middling(count, **columns):
    """Draws in the middle of their range, where every symmetric change is none, but for the given columns."""
    u = torch.full((count, DRAWS), 0.5)
    for name, value in columns.items():
        u[:, getattr(module, name)] = torch.as_tensor(value, dtype=torch.float32)
    return u


# --- the draws ---


def test_a_draw_depends_on_seed_epoch_and_image_alone():
    images = np.arange(1000)
    everything = draws(3, 5, images)
    shuffled = np.random.default_rng(0).permutation(images)
    assert np.array_equal(draws(3, 5, shuffled), everything[shuffled])
    assert np.array_equal(draws(3, 5, images[700:703]), everything[700:703])
    assert np.array_equal(draws(3, 5, np.array([999])), everything[[999]])
    for other in (draws(4, 5, images), draws(3, 6, images), draws(5, 3, images)):
        assert (other == everything).mean() < 0.001
    assert everything.dtype == np.float32
    assert everything.shape == (1000, DRAWS)


def test_draws_are_uniform_in_every_column():
    count = 20_000
    u = np.sort(draws(0, 0, np.arange(count)).astype(np.float64), axis=0)
    assert u.min() >= 0
    assert u.max() < 1
    # Four standard errors of the mean and of the mean square, and Kolmogorov's bound at one in 10⁷.
    assert np.abs(u.mean(0) - 1 / 2).max() < 4 / np.sqrt(12 * count)
    assert np.abs((u**2).mean(0) - 1 / 3).max() < 4 * np.sqrt((1 / 5 - 1 / 9) / count)
    expected = (np.arange(count) + 0.5)[:, None] / count
    assert np.abs(u - expected).max() < 2.9 / np.sqrt(count)


def test_columns_neighbouring_images_epochs_and_seeds_are_uncorrelated():
    count = 20_000
    u, later, elsewhere = (draws(seed, epoch, np.arange(count)) for seed, epoch in ((0, 0), (0, 1), (1, 0)))
    bound = 5 / np.sqrt(count)
    columns = np.corrcoef(u.T.astype(np.float64)) - np.eye(DRAWS)
    assert np.abs(columns).max() < bound
    pairs = [(u[:-1], u[1:]), (u, later), (u, elsewhere)]
    for name, (a, b) in zip(("image", "epoch", "seed"), pairs, strict=True):
        together = np.corrcoef(a.T.astype(np.float64), b.T.astype(np.float64))[:DRAWS, DRAWS:]
        assert np.abs(together).max() < bound, name


def test_an_order_is_a_permutation_that_differs_by_epoch_and_seed():
    order = epoch_order(0, 0, 1000)
    assert np.array_equal(np.sort(order), np.arange(1000))
    assert order.dtype == np.int64
    assert np.array_equal(order, epoch_order(0, 0, 1000))
    for seed, epoch in ((0, 1), (1, 0), (1, 1)):
        other = epoch_order(seed, epoch, 1000)
        assert (other == order).sum() < 10   # a random permutation keeps one place on average
    assert not np.array_equal(epoch_order(0, 1, 1000), epoch_order(1, 0, 1000))


# --- crops ---


@pytest.mark.parametrize("pad", [0, 1, 3, 7])
def test_pad_and_crop_equals_numpy(pad):
    images = pictures(64, size=8)
    u = torch.from_numpy(draws(0, 0, np.arange(64)))
    got = augment(images, u, Augment(crop="pad", pad=pad, flip=False), cropped=False)
    for image, crop, draw in zip(images.numpy(), got.numpy(), u.numpy(), strict=True):
        x, y = (int(draw[column] * (2 * pad + 1)) for column in (module.X, module.Y))
        padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
        assert np.array_equal(crop, padded[y : y + 8, x : x + 8])
    assert got.dtype == torch.uint8


def test_pad_reaches_every_shift_and_no_further():
    image = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    image[0, 4, 4] = 255
    spots = set()
    for x in (0.0, 0.34, 1 - 2**-24):
        for y in (0.0, 0.34, 1 - 2**-24):
            moved = augment(image, middling(1, X=x, Y=y), Augment(crop="pad", pad=1, flip=False), cropped=False)
            spots.add(tuple(map(int, moved[0, ..., 0].nonzero()[0])))
    assert spots == {(4 + a, 4 + b) for a in (-1, 0, 1) for b in (-1, 0, 1)}


def test_images_are_mirrored_where_drawn_and_nowhere_else():
    images = pictures(4)
    u = middling(4, FLIP=[0.0, 0.499, 0.5, 0.999])
    got = augment(images, u, Augment(crop="none", flip=True), cropped=False)
    assert torch.equal(got[:2], images[:2].flip(2))
    assert torch.equal(got[2:], images[2:])
    assert torch.equal(augment(images, u, STILL, cropped=False), images)


def test_what_was_cropped_while_decoding_is_not_cropped_again():
    images, u = pictures(8), torch.from_numpy(draws(0, 0, np.arange(8)))
    for crop in ("pad", "resized", "affine"):
        how = Augment(crop=crop, flip=False, scale=(0.5, 0.9))
        assert torch.equal(augment(images, u, how, cropped=True), images)
        assert not torch.equal(augment(images, u, how, cropped=False), images)


AFFINE = {"crop": "affine", "flip": False}


def test_an_affine_map_without_strength_is_the_identity():
    images = pictures(3)
    u = torch.from_numpy(draws(0, 0, np.arange(3)))
    u[:, module.STRETCH] = 0.5
    got = augment(images, u, Augment(scale=(1.0, 1.0), **AFFINE), cropped=False)
    torch.testing.assert_close(got, images.float(), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("x", "y"), [(2, 0), (-3, 0), (0, 4), (1, -2)])
def test_a_shift_by_whole_pixels_rolls_the_image(x, y):
    images, size, most = pictures(2), 16, 4
    how = Augment(scale=(1.0, 1.0), shift=most / size, **AFFINE)
    u = middling(2, X=0.5 + x / most / 2, Y=0.5 + y / most / 2)
    got = augment(images, u, how, cropped=False)
    rolled = images.roll((-y, -x), (1, 2)).float()
    inside = slice(most, size - most)
    torch.testing.assert_close(got[:, inside, inside], rolled[:, inside, inside], atol=1e-3, rtol=0)


def test_what_comes_in_at_the_edge_is_the_border_repeated():
    images = pictures(2)
    got = augment(images, middling(2, X=1.0), Augment(scale=(1.0, 1.0), shift=4 / 16, **AFFINE), cropped=False)
    wanted = torch.cat([images[:, :, 4:], images[:, :, -1:].expand(-1, -1, 4, -1)], 2).float()
    torch.testing.assert_close(got, wanted, atol=1e-3, rtol=0)


def test_proportions_change_by_a_tenth_at_most():
    ramp = torch.arange(32.0).expand(32, 32)
    images = torch.stack([ramp, ramp.T, ramp], -1)[None].to(torch.uint8)
    for u in (0.0, 0.7, 1.0):
        got = augment(images, middling(1, STRETCH=u), Augment(scale=(1, 1), **AFFINE), cropped=False)[0]
        wide, tall = float(got[16, 17, 0] - got[16, 16, 0]), float(got[17, 16, 1] - got[16, 16, 1])
        assert wide * tall == pytest.approx(1, abs=1e-4), "the area stays"
        assert wide / tall == pytest.approx(np.exp(0.1 * (2 * u - 1)), abs=1e-3)


@pytest.mark.parametrize("turns", [1, 2])
def test_quarter_and_half_turns(turns):
    images, how = pictures(2), Augment(scale=(1, 1), rotate=90 * turns, **AFFINE)
    one_way, other_way = (augment(images, middling(2, TURN=u), how, cropped=False) for u in (1.0, 0.0))
    torch.testing.assert_close(one_way, images.rot90(turns, (1, 2)).float(), atol=1e-2, rtol=0)
    torch.testing.assert_close(other_way, images.rot90(-turns, (1, 2)).float(), atol=1e-2, rtol=0)


def test_a_zoom_of_two_shows_the_middle_twice_as_large():
    images = smooth_pictures(3, size=32)
    got = augment(images, middling(3, ZOOM=1.0), Augment(scale=(0.5, 2.0), **AFFINE), cropped=False)
    middle = images[:, 8:24, 8:24].permute(0, 3, 1, 2).float()
    larger = F.interpolate(middle, (32, 32), mode="bilinear").permute(0, 2, 3, 1)
    torch.testing.assert_close(got[:, 1:-1, 1:-1], larger[:, 1:-1, 1:-1], atol=1e-2, rtol=0)
    unchanged = augment(images, middling(3, ZOOM=0.5), Augment(scale=(0.5, 2.0), **AFFINE), cropped=False)
    torch.testing.assert_close(unchanged, images.float(), atol=1e-3, rtol=0)   # the middle of a zoom is no zoom


def test_a_resized_crop_on_the_device_is_pillows_of_the_same_box():
    image_module = pytest.importorskip("PIL.Image")
    how = Augment(crop="resized", scale=(0.08, 1.0), flip=False)
    images, numbers = smooth_pictures(32, size=24), draws(0, 0, np.arange(32))
    got = augment(images, torch.from_numpy(numbers), how, cropped=False).numpy()
    for image, crop, draw in zip(images.numpy(), got, numbers, strict=True):
        box = crop_box(draw, 24, 24, how)
        wanted = image_module.fromarray(image).resize((24, 24), image_module.Resampling.BILINEAR, box=box)
        assert np.abs(crop - np.asarray(wanted)).max() <= 1.5   # Pillow rounds twice


def test_a_crop_box_lies_inside_and_has_the_drawn_area_and_aspect():
    how = Augment(crop="resized", scale=(0.1, 0.5))
    for draw in draws(0, 0, np.arange(500)):
        left, top, right, bottom = crop_box(draw, 300, 400, how)
        assert 0 <= left < right <= 400 + 1e-9
        assert 0 <= top < bottom <= 300 + 1e-9
        share = (right - left) * (bottom - top) / (300 * 400)
        aspect = (right - left) / (bottom - top)
        assert share == pytest.approx(0.1 + 0.4 * float(draw[module.ZOOM]), rel=1e-6)
        assert 3 / 4 - 1e-6 <= aspect <= 4 / 3 + 1e-6
    boxes = np.array([crop_box(draw, 300, 400, how) for draw in draws(0, 0, np.arange(500))])
    assert boxes[:, 0].min() < 5 < 395 < boxes[:, 2].max()   # crops reach both edges


def test_a_crop_larger_than_the_image_is_cut_to_it():
    how = Augment(crop="resized", scale=(1.0, 1.0))
    u = middling(1, STRETCH=1.0)[0].numpy()
    left, top, right, bottom = crop_box(u, 100, 100, how)
    assert (left, right) == (0, 100)
    assert bottom - top == pytest.approx(100 * 0.75**0.5)


# --- colours ---


def test_mixing_the_channels_keeps_white_and_grey_in_place():
    flat = torch.tensor([0, 60, 128, 204, 255], dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 8, 8, 3)
    u = torch.from_numpy(draws(0, 0, np.arange(5)))
    u[:, [module.BRIGHT, module.CONTRAST]] = 0.5
    got = augment(flat, u, Augment(crop="none", flip=False, colour=0.35), cropped=False)
    torch.testing.assert_close(got, flat.float(), atol=1e-3, rtol=0)
    red = torch.zeros(5, 8, 8, 3, dtype=torch.uint8)
    red[..., 0] = 200
    assert (augment(red, u, Augment(crop="none", flip=False, colour=0.35), cropped=False) - red).abs().amax() > 10


def test_recolouring_is_one_affine_map_of_the_colours():
    """Pixel by pixel in float64: (p − m) · mix · contrast + m + brightness, with m = 204."""
    how = Augment(crop="none", flip=False, colour=0.35)
    images, u = pictures(3, size=4), torch.from_numpy(draws(1, 2, np.arange(3)))
    got = augment(images, u, how, cropped=False)
    for image, numbers, result in zip(images.numpy(), u.numpy().astype(np.float64), got.numpy(), strict=True):
        mix = np.eye(3) + 0.6 * 0.35 * (2 * numbers[module.MIX :].reshape(3, 3) - 1)
        mix /= mix.sum(0)
        contrast = np.exp(0.35 * (2 * numbers[module.CONTRAST] - 1))
        bright = 255 * 0.4 * 0.35 * (2 * numbers[module.BRIGHT] - 1)
        for pixel, wanted in zip(image.reshape(-1, 3), result.reshape(-1, 3), strict=True):
            assert np.allclose((pixel - 204.0) @ mix * contrast + 204 + bright, wanted, atol=1e-3)


def test_grey_images_have_equal_channels_and_the_others_keep_theirs():
    images = pictures(3)
    got = augment(images, middling(3, GREY=[0.0, 0.29, 0.3]), Augment(crop="none", flip=False, grey=0.3), cropped=False)
    means = images.float().mean(-1, keepdim=True).expand(-1, -1, -1, 3)
    torch.testing.assert_close(got[:2], means[:2], atol=1e-3, rtol=0)
    assert torch.equal(got[2], images[2].float())


def test_a_negative_is_255_minus_the_image():
    images = pictures(2)
    got = augment(images, middling(2, INVERT=[0.0, 0.5]), Augment(crop="none", flip=False, invert=0.5), cropped=False)
    assert torch.equal(got[0], 255 - images[0].float())
    assert torch.equal(got[1], images[1].float())


def test_outlines_are_dark_where_neighbours_differ_and_white_elsewhere():
    images = torch.full((3, 12, 12, 3), 90, dtype=torch.uint8)
    images[1:, :, 6:] = 200
    how = Augment(crop="none", flip=False, outline=0.5)
    got = augment(images, middling(3, OUTLINE=[0.0, 0.0, 0.5]), how, cropped=False)
    assert torch.equal(got[0], torch.full((12, 12, 3), 255.0)), "nothing differs"
    dark = torch.zeros(12, 12, dtype=torch.bool)
    dark[:, 5:7] = True
    assert torch.equal(got[1].amax(-1) < 255, dark)
    assert (got[1][dark] == 0).all(), "110 levels are a full line"
    assert torch.equal(got[2], images[2].float())


@pytest.mark.parametrize(
    "how",
    [
        Augment(crop="none", flip=True),
        Augment(crop="pad"),
        Augment(crop="resized"),
        Augment(crop="affine", scale=(0.8, 1.2), rotate=10, shift=0.1),
        Augment(crop="none", colour=0.5, grey=0.5, invert=0.5, outline=0.5),
    ],
    ids=lambda how: f"{how.crop}-{how.colour}",
)
def test_the_images_given_are_left_as_they_are(how):
    images, u = pictures(6), torch.from_numpy(draws(0, 0, np.arange(6)))
    before, numbers = images.clone(), u.clone()
    got = augment(images, u, how, cropped=False)
    assert got.shape == images.shape
    assert torch.equal(images, before)
    assert torch.equal(u, numbers)
    assert not torch.equal(got.float(), images.float())


# --- normalising ---


def test_normalise_is_the_formula_with_channels_last_in_memory():
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    images = pictures(3, size=5)
    got = Normalise(mean, std, torch.device("cpu"))(images)
    assert got.shape == (3, 3, 5, 5)
    assert got.dtype == torch.float32
    assert got.is_contiguous(memory_format=torch.channels_last)
    for channel in range(3):
        wanted = (images[..., channel].double() / 255 - mean[channel]) / std[channel]
        torch.testing.assert_close(got[:, channel].double(), wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(images, pictures(3, size=5))
