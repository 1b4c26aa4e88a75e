"""One picture to pixels: kinds of files, sizes, what is transparent, turned, damaged, too large."""

import os
import struct
import zlib

import numpy as np
import pytest

pytest.importorskip("PIL", reason="Pillow, of the images extra, is not installed")
from pictures import noise, save
from PIL import Image

from toynn.data._picture import check_file, fit, read_file
from toynn.errors import DataError


def image_of(path, side=8, channels=3):
    return read_file(path, side, channels)


@pytest.mark.parametrize("kind", ["png", "bmp", "tif", "webp", "ppm"])
def test_pixels_are_those_of_the_file(tmp_path, kind):
    pixels = noise(8, 8, 3)
    path = save(pixels, tmp_path / f"a.{kind}", **({"lossless": True} if kind == "webp" else {}))
    np.testing.assert_array_equal(image_of(path), pixels)
    assert not check_file(path)


def test_grey_becomes_rgb_and_rgb_grey(tmp_path):
    pixels = noise(8, 8)
    path = save(pixels, tmp_path / "grey.png")
    np.testing.assert_array_equal(image_of(path), np.stack([pixels] * 3, axis=2))
    np.testing.assert_array_equal(image_of(path, channels=1), pixels[..., None])
    colours = noise(8, 8, 3)
    luma = colours @ np.array([0.299, 0.587, 0.114])
    grey = image_of(save(colours, tmp_path / "rgb.png"), channels=1)[..., 0]
    assert np.abs(grey - luma).max() <= 1


def test_transparent_pixels_are_white_behind(tmp_path):
    pixels = noise(8, 8, 4)
    share = pixels[..., 3:] / 255
    expected = pixels[..., :3] * share + 255 * (1 - share)
    for suffix in ("png", "webp"):
        path = save(pixels, tmp_path / f"a.{suffix}", **({} if suffix == "png" else LOSSLESS))
        assert np.abs(image_of(path) - expected).max() <= 1
    np.testing.assert_array_equal(fit(pixels, 8, 3), image_of(tmp_path / "a.png"))


LOSSLESS = {"lossless": True, "exact": True}


def test_palettes_with_and_without_transparency(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:4] = (255, 0, 0)
    picture = Image.fromarray(pixels).quantize(4)
    picture.save(tmp_path / "a.png")
    np.testing.assert_array_equal(image_of(tmp_path / "a.png"), pixels)
    picture.save(tmp_path / "b.png", transparency=picture.getpixel((0, 0)))
    pixels[:4] = 255
    np.testing.assert_array_equal(image_of(tmp_path / "b.png"), pixels)


def test_16_bits_become_8(tmp_path):
    wide = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1040
    Image.fromarray(wide).save(tmp_path / "a.png")
    np.testing.assert_array_equal(
        image_of(tmp_path / "a.png", channels=1)[..., 0], np.rint(wide / 257)
    )
    Image.fromarray(wide.astype(np.int32)).save(tmp_path / "b.tif")
    np.testing.assert_array_equal(image_of(tmp_path / "b.tif"), image_of(tmp_path / "a.png"))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_of_no_known_range_are_refused(tmp_path, dtype):
    Image.fromarray(np.full((8, 8), 10**6, dtype)).save(tmp_path / "a.tif")
    with pytest.raises(
        DataError, match=r"a\.tif: pixels of mode [FI]; expected whole numbers of at most 16 bits"
    ):
        image_of(tmp_path / "a.tif")


def test_cmyk_becomes_rgb(tmp_path):
    Image.new("CMYK", (8, 8), (255, 0, 0, 0)).save(tmp_path / "a.jpg")
    pixels = image_of(tmp_path / "a.jpg").astype(int)
    assert np.abs(pixels - (0, 255, 255)).max() < 8


def test_a_camera_turned_is_turned_back(tmp_path):
    pixels = noise(8, 8, 3)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera's right is up: show it turned by 90 degrees, clockwise
    path = save(pixels, tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(image_of(path), np.rot90(pixels, -1))


def test_the_square_in_the_middle_is_scaled(tmp_path):
    pixels = np.repeat(np.arange(30, dtype=np.uint8)[:, None] * 8, 10, axis=1)  # 30 high, 10 wide
    path = save(pixels, tmp_path / "a.png")
    middle = pixels[10:20]
    expected = np.asarray(Image.fromarray(middle).resize((5, 5), Image.Resampling.BICUBIC))
    result = image_of(path, 5, 1)[..., 0]
    np.testing.assert_allclose(result[1:-1].astype(int), expected[1:-1], atol=1)
    assert 75 < result[0, 0] < result[-1, 0] < 165
    np.testing.assert_array_equal(fit(pixels[..., None], 5, 1)[..., 0], result)
    larger = fit(pixels[..., None], 20, 3)
    assert larger.shape == (20, 20, 3)
    assert (np.diff(larger[:, 0, 0].astype(int)) >= 0).all()


def test_a_large_jpeg_is_decoded_at_less_than_its_size(tmp_path):
    ramp = np.linspace(0, 255, 512).astype(np.uint8)
    path = save(np.broadcast_to(ramp[:, None], (512, 512)).copy(), tmp_path / "a.jpg")
    result = image_of(path, 8, 1)[..., 0].astype(int)
    np.testing.assert_allclose(result[:, 3], ramp.reshape(8, 64).mean(axis=1), atol=3)


@pytest.mark.parametrize("kind", ["gif", "png", "webp", "tif"])
def test_the_first_of_several_frames_is_the_picture(tmp_path, kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("white", "black", "red")]
    path = tmp_path / f"a.{kind}"
    frames[0].save(path, save_all=True, append_images=frames[1:], **LOSSLESS)
    assert check_file(path)
    assert (image_of(path) == 255).all()


def test_a_photograph_with_a_smaller_copy_is_one_picture(tmp_path):
    frames = [Image.new("RGB", (8, 8), "white"), Image.new("RGB", (4, 4), "black")]
    path = tmp_path / "a.jpg"
    frames[0].save(path, format="MPO", save_all=True, append_images=frames[1:])
    assert not check_file(path)
    assert (image_of(path) == 255).all()


def png_header(width, height):
    """The start of a PNG that claims this size."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    header = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + header + struct.pack(">I4sI", 0, b"IDAT", zlib.crc32(b"IDAT"))


@pytest.mark.parametrize("kind", ["png", "jpg", "gif", "webp", "bmp"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_a_truncated_file_is_refused(tmp_path, kind, share):
    path = save(noise(64, 64, 3), tmp_path / f"a.{kind}")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match=rf"a.{kind}: (cannot read the picture: .|not a picture)"):
        image_of(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a picture in a format"),
        (b"hello", "not a picture in a format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "not a picture in a format"),
        (png_header(20_000, 20_000), "too large: more than 89,478,485 pixels; scale it down"),
        (png_header(10_000, 10_000), "too large: more than 89,478,485 pixels; scale it down"),
    ],
)
def test_what_is_no_picture_or_gigantic(tmp_path, content, words):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    for read in (check_file, image_of):
        with pytest.raises(DataError, match=words) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_no_file_a_folder_a_pipe(tmp_path):
    with pytest.raises(DataError, match=r"none\.png: cannot read the picture: No such file"):
        image_of(tmp_path / "none.png")
    with pytest.raises(DataError, match="not a file"):
        image_of(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DataError, match=r"pipe\.png: not a file"):
        image_of(tmp_path / "pipe.png")
    with pytest.raises(DataError, match="null"):
        image_of("a\0b.png")
