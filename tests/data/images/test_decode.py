import subprocess
import sys
import threading

import numpy as np
import pytest

from matryo.data import decode_all
from matryo.data.images.arrays import ArrayImages
from matryo.data.images.decode import decode, image_shape, in_threads, to_rgb
from matryo.errors import DataError, MissingExtra

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def save():
    """A Pillow image as the bytes of a file."""
    import io

    def save(image, form="PNG", **options):
        file = io.BytesIO()
        image.save(file, form, **options)
        return file.getvalue()

    return save


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_formats_give_the_same_pixels(pixels, encode, form):
    options = {"lossless": True} if form == "WEBP" else {}
    image = decode(encode(pixels[0], form, **options), "x")
    assert image.dtype == np.uint8
    assert image.flags.writeable
    assert np.array_equal(image, pixels[0])


def test_gray_and_bilevel(pixels, encode):
    gray = pixels[0, ..., 0]
    assert np.array_equal(decode(encode(gray), "x"), np.repeat(gray[..., None], 3, axis=-1))
    black_or_white = decode(encode(gray > 127), "x")
    assert np.array_equal(black_or_white[..., 0], np.where(gray > 127, 255, 0))


def test_palette(pixels, save):
    colours = Image.fromarray(pixels[0]).quantize(16)
    assert np.array_equal(decode(save(colours), "x"), np.array(colours.convert("RGB")))
    assert decode(save(colours, "GIF"), "x").shape == (8, 8, 3)


def test_transparency_lies_over_white(pixels, save):
    alpha = np.zeros((8, 8), np.uint8)
    alpha[:, 4:] = 255
    picture = np.dstack([pixels[0], alpha])
    for data in (save(Image.fromarray(picture)), save(Image.fromarray(picture), "WEBP", lossless=True)):
        image = decode(data, "x")
        assert (image[:, :4] == 255).all()
        assert np.array_equal(image[:, 4:], pixels[0][:, 4:])
    half = decode(save(Image.new("RGBA", (2, 2), (0, 0, 0, 128))), "x")
    assert abs(int(half[0, 0, 0]) - 127) <= 1
    gray = decode(save(Image.new("LA", (2, 2), (9, 0))), "x")
    assert (gray == 255).all()


def test_a_transparent_palette_entry_or_colour_is_white(save):
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    expected = [[255, 255, 255], [40, 50, 60]]
    assert decode(save(palette, transparency=0), "x")[0].tolist() == expected
    assert decode(save(palette.convert("RGB"), transparency=(10, 20, 30)), "x")[0].tolist() == expected


def test_16_bit_gray_keeps_its_high_byte(encode):
    deep = np.array([[0, 255, 256, 65_535]], np.uint16)
    assert decode(encode(deep), "x")[0, :, 0].tolist() == [0, 0, 1, 255]
    assert decode(encode(deep, "TIFF"), "x")[0, :, 2].tolist() == [0, 0, 1, 255]


def test_32_bit_gray_may_hold_8_bits_or_16(encode):
    shallow, deep = np.array([[0, 1, 128, 255]], np.int32), np.array([[0, 255, 256, 65_535]], np.int32)
    assert Image.fromarray(shallow).mode == "I"
    assert decode(encode(shallow, "TIFF"), "x")[0].tolist() == [[value] * 3 for value in (0, 1, 128, 255)]
    assert to_rgb(Image.fromarray(shallow), "x")[0, :, 1].tolist() == [0, 1, 128, 255]
    assert decode(encode(deep, "TIFF"), "x")[0, :, 0].tolist() == [0, 0, 1, 255]


@pytest.mark.parametrize("ending", ["PNG", "TIFF", "PPM"])
def test_a_dark_image_of_16_bits_stays_dark(encode, ending):
    dark = np.array([[0, 1, 128, 255]], np.uint16)
    assert not decode(encode(dark, ending), "x").any()


@pytest.mark.parametrize("value", [-1, 1 << 16])
def test_32_bit_gray_beyond_16_bits_is_refused(encode, refuses, value):
    with refuses("image a.tif must have 8 or 16 bits", "Pillow mode I", "save it as 8-bit"):
        decode(encode(np.array([[0, value]], np.int32), "TIFF"), "a.tif")


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_images_without_a_range_are_refused(encode, refuses, dtype):
    with refuses("image dir/a.tif must have 8 or 16 bits", "Pillow mode", "save it as 8-bit"):
        decode(encode(np.full((2, 2), 1e6, dtype), "TIFF"), "dir/a.tif")


def test_cmyk(save):
    red = decode(save(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100), "x")
    assert abs(red.astype(int) - [255, 0, 0]).max() < 8


def test_exif_orientation_is_left_alone(pixels, save):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = save(Image.fromarray(pixels[0][:4]), "PNG", exif=exif)
    assert np.array_equal(decode(turned, "x"), pixels[0][:4])


def test_an_animation_gives_its_first_frame(pixels, save):
    frames = [Image.fromarray(p) for p in pixels[:2]]
    data = save(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert np.array_equal(decode(data, "x"), pixels[0])


def test_image_shape_is_height_then_width(encode):
    assert image_shape(encode(np.zeros((3, 5, 3), np.uint8)), "x") == (3, 5)


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "noise"])
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_damaged_bytes_name_the_image(encode, refuses, damage, form):
    whole = encode(np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8), form)
    noise = bytearray(whole)
    noise[8:24] = b"\xff" * 16
    data = {"cut": whole[: len(whole) // 2], "empty": b"", "text": b"hello", "noise": bytes(noise)}[damage]
    with refuses("image train/cat/1.jpg cannot be decoded", "replace or remove the file", "JPEG, PNG"):
        decode(data, "train/cat/1.jpg")


def test_formats_that_run_programs_are_not_opened(refuses):
    with refuses("cannot be decoded"):
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n", "a.png")


def test_without_pillow_the_cure_is_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"this needs pillow: pip install 'matryo\[images\]'"):
        decode(b"", "x")


@pytest.mark.parametrize("threads", [1, 3, None])
def test_decode_all_is_every_image_in_order(pixels, threads):
    images = ArrayImages(pixels, range(12))
    assert np.array_equal(decode_all(images, threads=threads), pixels)
    assert np.array_equal(decode_all(images, [5, 2, 5], threads=threads), pixels[[5, 2, 5]])
    assert np.array_equal(decode_all(images, np.arange(12) < 3, threads=threads), pixels[:3])
    assert decode_all(images, [], threads=threads).shape == (0, 8, 8, 3)


@pytest.mark.parametrize("bad", [[0.5], [[1]], [True] * 11, 3])
def test_decode_all_wants_integers(pixels, refuses, bad):
    with refuses("a subset must be given by integers, or by one boolean per image", "a mask of length 12"):
        decode_all(ArrayImages(pixels, range(12)), bad)


def test_decode_all_needs_one_shape(image_tree, refuses):
    from matryo.data import image_folder

    with refuses("images must have the same shape", "resize them first: matryo.data.pack"):
        decode_all(image_folder(image_tree({"train/cat/1.png": 0})).split("train"))


def test_decode_all_checks_each_shape(encode, refuses):
    from matryo.data.images.packed import PackedImages

    files = [encode(np.zeros((8, 8, 3), np.uint8)), encode(np.zeros((8, 9, 3), np.uint8))]
    offsets = np.cumsum([0, *map(len, files)])
    split = PackedImages(np.frombuffer(b"".join(files), np.uint8), offsets, [0, 0], source="p.npz")
    with refuses("image p.npz#1 must have the shape of its split, 8 × 8", "got 8 × 9", "resize all"):
        decode_all(split)


@pytest.mark.parametrize("count", [0, 1, 7, 200])
def test_in_threads_keeps_order_and_uses_threads(count):
    seen = set()

    def work(i):
        seen.add(threading.get_ident())
        return i * i

    assert list(in_threads(work, count, 2, chunk=3)) == [i * i for i in range(count)]
    assert threading.get_ident() not in seen or count < 2


def test_in_threads_passes_errors_on():
    def work(i):
        if i == 50:
            raise DataError("stop", got=i, cure="none")
        return i

    with pytest.raises(DataError, match="stop"):
        list(in_threads(work, 100, 2, chunk=1))


def test_importing_the_package_loads_neither_torch_nor_pillow():
    code = "import sys, matryo.data; print(sorted({'torch', 'PIL', 'tqdm', 'tarfile'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
