"""Crops, against those of Pillow from the whole image."""

import io

import numpy as np
import pytest

pytest.importorskip("PIL")
from PIL import Image

from matryo.data import array_dataset
from matryo.data.images import crops, decode, jpeg
from matryo.data.images.crops import crop_into, divisor_of, resize_into
from matryo.data.images.packed import PackedImages
from matryo.errors import ImageError


def photo(height, width, seed=0):
    """Smooth shapes with edges and some noise, as a camera's."""
    rng = np.random.default_rng(seed)
    rough = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    smooth = np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC), np.float32)
    return np.clip(smooth + rng.normal(0, 3, (height, width, 1)), 0, 255).astype(np.uint8)


def pillow_crop(pixels, box, height, width):
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR, box=box))


@pytest.fixture(params=["core", "pillow"])
def resampler(request, monkeypatch):
    """Both ways to resize; the core's where it is installed."""
    if request.param == "pillow":
        monkeypatch.setattr(crops, "_resample", lambda: None)
    elif crops._resample() is None:
        pytest.skip("no compiled core")
    return request.param


@pytest.mark.usefixtures("resampler")
def test_a_box_is_resized_as_pillow_does():
    """Equal bits where columns shrink in a wide image; elsewhere within 1, as Pillow 13 may resize the rows first."""
    rng = np.random.default_rng(0)
    for case in range(150):
        height, width = rng.integers(1, 90, 2)
        out = np.empty((*rng.integers(1, 60, 2), 3), np.uint8)
        left, right = sorted(rng.random(2) * width)
        top, bottom = sorted(rng.random(2) * height)
        box = (0.0, 0.0, float(width), float(height)) if case % 5 == 0 else (left, top, right, bottom)
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        if case % 7 == 0:
            pixels[:] = 255 * (case % 2)   # sums must not leave 0…255
        resize_into(pixels, box, out)
        wanted = pillow_crop(pixels, box, *out.shape[:2])
        exact = height <= width and right - left >= out.shape[1]
        assert np.abs(out.astype(int) - wanted).max() <= (0 if exact else 1), (case, box)


@pytest.mark.usefixtures("resampler")
def test_a_constant_image_stays_constant():
    for value in (0, 1, 127, 254, 255):
        out = np.empty((7, 5, 3), np.uint8)
        resize_into(np.full((31, 47, 3), value, np.uint8), (0.3, 1.7, 46.2, 29.9), out)
        assert (out == value).all()


def test_the_core_refuses_what_it_would_read_out_of_bounds():
    resample = crops._resample()
    if resample is None:
        pytest.skip("no compiled core")
    pixels, out = np.zeros((4, 6, 3), np.uint8), np.empty((2, 2, 3), np.uint8)
    for box in ((-1, 0, 6, 4), (0, 0, 6.5, 4), (0, 0, 6, 4.5), (3, 0, 3, 4), (0, float("nan"), 6, 4)):
        with pytest.raises(ValueError, match="the box must lie within"):
            resample(pixels, *box, out)
    with pytest.raises(ValueError, match="3 channels"):
        resample(np.zeros((4, 6, 4), np.uint8), 0, 0, 6, 4, out)


@pytest.mark.parametrize(("box", "size", "divisor"), [
    ((0, 0, 500, 375), 160, 2), ((0, 0, 319.9, 400), 160, 1), ((0, 0, 4000, 3000), 224, 8), ((0, 0, 640, 640), 160, 4),
    ((10, 10, 170, 170), 160, 1), ((0, 0, 20, 20), 160, 1),
])  # fmt: skip
def test_the_scale_leaves_at_least_the_pixels_that_are_needed(box, size, divisor):
    assert divisor_of(box, size, size) == divisor


@pytest.fixture(params=["simplejpeg", "pillow"])
def library(request, monkeypatch):
    """Both decoders of JPEG."""
    if request.param == "pillow":
        monkeypatch.setattr(jpeg, "_simplejpeg", lambda: None)
    else:
        pytest.importorskip("simplejpeg")
    return request.param


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("options", [{"quality": 90}, {"quality": 60, "subsampling": 0}, {"progressive": True}])
def test_a_jpeg_is_decoded_as_pillow_does(encode, options):
    for height, width in ((33, 47), (1, 1), (8, 200), (64, 16)):
        data = encode(photo(height, width), "JPEG", **options)
        wanted = np.asarray(Image.open(io.BytesIO(data)))
        assert np.array_equal(decode.decode(data, "x"), wanted)
        for divisor in [n for n in (1, 2, 4, 8) if n <= min(height, width)]:
            pixels, shape, used = decode.decode_scaled(data, "x", lambda *_, divisor=divisor: divisor)
            assert (shape, used) == ((height, width), divisor)
            assert pixels.shape == (-(-height // divisor), -(-width // divisor), 3)
            image = Image.open(io.BytesIO(data))
            image.draft("RGB", (width // divisor, height // divisor))
            assert np.array_equal(pixels, np.asarray(image))


@pytest.mark.usefixtures("library")
def test_gray_cmyk_and_damaged_jpegs_are_read_as_pillow_reads_them(encode):
    gray = encode(photo(40, 50)[..., 0], "JPEG")
    image = Image.open(io.BytesIO(gray)).convert("RGB")
    assert np.array_equal(decode.decode(gray, "x"), np.asarray(image))
    file = io.BytesIO()
    Image.fromarray(photo(40, 50)).convert("CMYK").save(file, "JPEG")
    wanted = np.asarray(Image.open(file).convert("RGB"))
    assert np.array_equal(decode.decode(file.getvalue(), "x"), wanted)
    data = encode(photo(40, 50), "JPEG")
    for broken in (data[: len(data) // 2], data[:30], data[:2] + b"\0" * 100):
        with pytest.raises(ImageError, match="image x cannot be decoded"):
            decode.decode(broken, "x")


@pytest.mark.usefixtures("library", "resampler")
def test_a_crop_of_a_file_is_that_of_the_decoded_image_within_the_tolerance(encode):
    """At full scale the bits are equal; from a scaled decoding, the mean difference stays below 2 of 255."""
    files = [encode(photo(300, 400, seed), "JPEG", quality=90) for seed in range(3)]
    split = PackedImages(np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *map(len, files)]))
    for index in range(3):
        pixels = split.image(index)
        for box, size, scaled in (
            ((10.5, 20.25, 350.0, 290.0), 200, False), ((0, 0, 400, 300), 100, True), ((3, 5, 390, 299), 32, True),
        ):  # fmt: skip
            out = np.empty((size, size, 3), np.uint8)
            crop_into(split, index, lambda *_, box=box: box, out)
            difference = np.abs(out.astype(int) - pillow_crop(pixels, box, size, size))
            assert difference.mean() < (2 if scaled else 1e-9)
            assert difference.max() <= (24 if scaled else 0)


@pytest.mark.usefixtures("resampler")
def test_images_in_memory_and_of_other_formats_are_cropped_too(encode):
    pixels = photo(30, 40)
    data = encode(pixels, "PNG")
    file = PackedImages(np.frombuffer(data, np.uint8), [0, len(data)])
    memory = array_dataset({"train": (pixels[None], [0])}).split("train")
    for split in (file, memory):
        out = np.empty((8, 8, 3), np.uint8)
        crop_into(split, 0, lambda height, width: (2, 1, width - 3, height - 4), out)
        assert np.array_equal(out, pillow_crop(pixels, (2, 1, 37, 26), 8, 8))


def test_plain_pixels_are_not_decoded(encode, monkeypatch):
    """The format of `pack(raw=…)`."""
    pixels = photo(9, 7)
    data = encode(pixels, "PPM")
    monkeypatch.setattr(decode, "_opened", None)   # not called
    found = decode.decode(data, "x")
    assert np.array_equal(found, pixels)
    found[:] = 0   # writable, as that of any other format
    monkeypatch.undo()
    with pytest.raises(ImageError, match="cannot be decoded"):
        decode.decode(data[:-1], "x")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("quality", [0, 50, 90, 100])
def test_an_encoded_jpeg_is_as_close_as_pillows(quality):
    pixels = photo(33, 47)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=max(1, quality))
    ours, theirs = (
        np.abs(decode.decode(data, "x").astype(int) - pixels).mean()
        for data in (jpeg.encode_jpeg(pixels, quality), file.getvalue())
    )
    assert ours < 1.1 * theirs + 0.1
