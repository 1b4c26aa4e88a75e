"""Labelled pictures from every source: what is read, how it is split, what is refused."""

import io
import zipfile

import numpy as np
import pytest

pytest.importorskip("PIL", reason="Pillow, of the images extra, is not installed")
from pictures import class_folders, idx, noise, of_class, save, write_mnist

from toynn.data import _image_arrays as arrays
from toynn.data.images import ImageData
from toynn.errors import DataError

LABELS = np.arange(30) % 3
IMAGES = np.stack([of_class(label) for label in LABELS])


def pixels(part, side=8, channels=1):
    return np.stack([part.pictures.fitted(i, side, channels) for i in range(len(part))])


def test_digits():
    pytest.importorskip("sklearn", reason="scikit-learn, of the images extra, is not installed")
    from sklearn.datasets import load_digits

    data = ImageData.digits(seed=3)
    assert (len(data.train), len(data.valid)) == (1438, 359)
    assert (data.classes, data.channels, data.side) == (tuple("0123456789"), 1, 8)
    both = np.concatenate([pixels(data.train), pixels(data.valid)])[..., 0]
    theirs = np.rint(load_digits().images / 16 * 255)
    assert sorted(map(bytes, both)) == sorted(map(bytes, theirs.astype(np.uint8)))
    shares = np.bincount(data.valid.labels) / np.bincount(load_digits().target)
    np.testing.assert_allclose(shares, 0.2, atol=0.003)
    again, other = ImageData.digits(seed=3), ImageData.digits(seed=4)
    np.testing.assert_array_equal(pixels(again.valid), pixels(data.valid))
    assert not np.array_equal(other.valid.pictures.array, data.valid.pictures.array)


def test_class_folders_in_the_order_of_their_names(tmp_path):
    root = class_folders(tmp_path, {"b cat": 5, "a dog": 11, "cow": 2})
    (root / "README.md").write_text("pictures")
    (root / ".git").mkdir()
    (root / "cow" / ".DS_Store").write_bytes(b"x")
    (root / "cow" / "Thumbs.db").write_bytes(b"x")
    data = ImageData.read(root)
    assert data.classes == ("a dog", "b cat", "cow")
    assert (data.channels, data.side, data.animated) == (3, None, 0)
    assert np.bincount(data.train.labels).tolist() == [9, 4, 1]
    assert np.bincount(data.valid.labels).tolist() == [2, 1, 1]
    names = [path.parent.name for path in data.train.pictures.paths]
    assert names == [data.classes[label] for label in data.train.labels]
    both = {*data.train.pictures.paths, *data.valid.pictures.paths}
    assert len(both) == 18
    assert pixels(data.train, 4, 3).shape == (14, 4, 4, 3)


@pytest.mark.parametrize("held", ["valid", "val", "test"])
def test_a_folder_that_is_split_already(tmp_path, held):
    class_folders(tmp_path / "train", {"a": 3, "b": 1})
    class_folders(tmp_path / held, {"b": 2})
    data = ImageData.read(tmp_path)
    assert (data.train.labels.tolist(), data.valid.labels.tolist()) == ([0, 0, 0, 1], [1, 1])
    assert held in str(data.valid.pictures.paths[0])
    class_folders(tmp_path / held, {"c": 1})
    with pytest.raises(DataError, match=f"{held}/c: the training pictures have no such class"):
        ImageData.read(tmp_path)


def test_a_train_folder_alone_is_split(tmp_path):
    data = ImageData.read(class_folders(tmp_path / "train", {"a": 3, "b": 10}).parent)
    assert (len(data.train), len(data.valid)) == (10, 3)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({}, r"0 folders with pictures; expected one for each of 2 or more classes"),
        ({"cat": 3}, r"1 folders with pictures; .*; found only cat"),
        ({"cat": 3, "dog": 0}, r"dog: the class has no picture"),
        ({"cat": 3, "dog": 1}, r"class dog has 1 pictures; expected 2 or more"),
    ],
)
def test_bad_folders(tmp_path, counts, words):
    for name in counts:
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=words):
        ImageData.read(class_folders(tmp_path, counts))


def test_what_is_no_picture_is_refused_or_skipped_and_counted(tmp_path):
    class_folders(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "a" / "notes.txt").write_text("these are cats")
    (tmp_path / "b" / "more").mkdir()
    with pytest.raises(DataError, match=r"notes\.txt: not a picture in .*skip_unreadable"):
        ImageData.read(tmp_path)
    data = ImageData.read(tmp_path, skip_unreadable=True)
    assert (len(data.train), len(data.valid)) == (4, 2)
    assert [reason.split(": ")[0].rsplit("/", 1)[1] for reason in data.unreadable] == [
        "notes.txt",
        "more",
    ]


def test_animated_files_are_counted(tmp_path):
    from PIL import Image

    class_folders(tmp_path, {"a": 2, "b": 2})
    frame = Image.new("L", (8, 8), 255)
    frame.save(tmp_path / "a" / "b.gif", save_all=True, append_images=[Image.new("L", (8, 8))])
    assert ImageData.read(tmp_path).animated == 1


@pytest.mark.parametrize("form", ["grey", "1", "rgb"])
def test_npz(tmp_path, form):
    images = {"grey": IMAGES, "1": IMAGES[..., None], "rgb": noise(30, 8, 10, 3)}[form]
    np.savez_compressed(tmp_path / "a.npz", images=images, labels=LABELS, classes=["x", "y", "z"])
    data = ImageData.read(tmp_path / "a.npz")
    assert (data.classes, len(data.train), len(data.valid)) == (("x", "y", "z"), 24, 6)
    assert (data.channels, data.side) == (3 if form == "rgb" else 1, 8)
    if form != "rgb":
        for part in (data.train, data.valid):
            for picture, label in zip(pixels(part), part.labels, strict=True):
                assert any(np.array_equal(picture[..., 0], each) for each in IMAGES[label::3])


def test_npz_in_parts(tmp_path):
    parts = {
        "x_train": IMAGES,
        "y_train": LABELS[:, None],
        "x_test": IMAGES[:3],
        "y_test": [2, 1, 0],
    }
    np.savez(tmp_path / "a.npz", **parts)
    data = ImageData.read(tmp_path / "a.npz")
    assert (data.train.labels.tolist(), data.valid.labels.tolist()) == (LABELS.tolist(), [2, 1, 0])
    np.testing.assert_array_equal(pixels(data.valid)[..., 0], IMAGES[:3])
    del parts["x_test"]
    np.savez(tmp_path / "b.npz", **parts)
    assert len(ImageData.read(tmp_path / "b.npz").valid) == 6
    for name in ("b.NPZ", "digits"):
        (tmp_path / "b.npz").rename(tmp_path / name)
        assert len(ImageData.read(tmp_path / name).valid) == 6
        (tmp_path / name).rename(tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"images": IMAGES}, "holds images; expected images and labels, or x_train"),
        ({"images": IMAGES / 255, "labels": LABELS}, "pictures of float64; expected uint8"),
        ({"images": IMAGES[0], "labels": LABELS}, r"pictures of shape \(8, 8\); expected \(N, H"),
        ({"images": noise(30, 3, 8, 8), "labels": LABELS}, r"shape \(30, 3, 8, 8\); expected"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, r"pictures of shape \(0, 8, 8, 1\)"),
        ({"images": IMAGES, "labels": LABELS[:9]}, r"labels \(9,\) of int64; expected one whole"),
        ({"images": IMAGES, "labels": LABELS / 2}, r"labels \(30,\) of float64; expected one"),
        ({"images": IMAGES, "labels": LABELS - 1}, "label -1 of picture 0; labels count from 0"),
        ({"images": IMAGES, "labels": LABELS + 1}, "class 0 has no training picture; labels count"),
        ({"images": IMAGES, "labels": LABELS * 0}, "all training pictures are of one class"),
        ({"images": IMAGES, "labels": LABELS * 10**6}, "label 2000000 is out of range"),
        (  # names for all of them would not fit into memory
            {"images": IMAGES, "labels": LABELS.astype(np.uint64) * 2**60},
            "label 2305843009213693952 is out of range; expected 0..99999",
        ),
        (
            {"images": IMAGES, "labels": LABELS, "classes": np.array(3)},
            r"classes \(\) of int64; expected texts, \(C,\), one for each label",
        ),
        ({"images": IMAGES, "labels": LABELS, "classes": [b"a", b"b", b"c"]}, "classes .* of .S1"),
        ({"images": IMAGES, "labels": LABELS, "classes": ["a", "b"]}, r"label 2 is .*0\.\.1"),
        ({"images": IMAGES, "labels": np.array([None] * 30)}, "labels holds Python objects"),
        (
            {"x_train": IMAGES, "y_train": LABELS, "x_test": noise(2, 9, 9), "y_test": [0, 1]},
            r"pictures of \(8, 8, 1\) and of \(9, 9, 1\)",
        ),
    ],
)
def test_bad_npz(tmp_path, content, words):
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(DataError, match=words) as caught:
        ImageData.read(tmp_path / "a.npz")
    assert str(tmp_path / "a.npz") in str(caught.value)


def test_two_arrays_of_one_name_are_refused(tmp_path):
    """Of which numpy, and the zip file, would give the last."""
    path = tmp_path / "a.npz"
    np.savez(path, images=IMAGES, labels=LABELS)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("labels.npy", archive.read("labels.npy"))
    with pytest.raises(DataError, match=r"a\.npz: expected arrays of different names; 'labels' co"):
        ImageData.read(path)


def test_damaged_npz(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, images=IMAGES, labels=LABELS)
    whole = path.read_bytes()
    for content in (b"", b"PK", whole[:200], whole[:-40], whole.replace(b"NUMPY", b"MUNPY")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.npz: "):
            ImageData.read(path)
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            ImageData.read(path)
        except DataError as error:
            assert "a.npz" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (0, 1180591620717411303424, 8)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (True, 8, 8)}",
        "{1: 2, 'descr': '|u1', 'fortran_order': False, 'shape': (30, 8, 8)}",
        "[" * 3000,
    ],
)
def test_damaged_headers_of_arrays(tmp_path, text):
    raw = text.encode() + b"\n"
    header = b"\x93NUMPY\x02\x00" + len(raw).to_bytes(4, "little") + raw
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", header + IMAGES.tobytes())
        archive.writestr("labels.npy", b"")
    with pytest.raises(DataError, match=r"a\.npz: damaged or of another kind"):
        ImageData.read(tmp_path / "a.npz")


def test_an_npz_that_claims_more_than_it_holds(tmp_path):
    for count, words in (
        (2**40, "images: 70,368,744,177,664 bytes; at most 8,589,934,592 can be read"),
        (2**20, r"images: \(1048576, 8, 8\) needs 67108864 bytes; the file has \d\d\d$"),
    ):
        header = io.BytesIO()
        description = {"descr": "|u1", "fortran_order": False, "shape": (count, 8, 8)}
        np.lib.format.write_array_header_1_0(header, description)
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("images.npy", header.getvalue())
            archive.writestr("labels.npy", header.getvalue())
        with pytest.raises(DataError, match=words):
            ImageData.read(tmp_path / "a.npz")


@pytest.mark.parametrize("pack", [False, True])
def test_mnist(tmp_path, pack):
    data = ImageData.read(write_mnist(tmp_path, {"train": 30, "t10k": 9}, pack))
    assert (data.classes, data.channels, data.side) == (("0", "1", "2"), 1, 8)
    assert data.train.labels.tolist() == LABELS.tolist()
    assert len(data.valid) == 9
    for label in range(3):
        shades = pixels(data.train)[label::3]
        assert 90 * label <= shades.min() < shades.max() < 90 * label + 64


def test_bad_mnist(tmp_path):
    write_mnist(tmp_path, {"train": 30})
    assert len(ImageData.read(tmp_path).valid) == 6
    labels, images = (tmp_path / f"train-{kind}-ubyte" for kind in ("labels-idx1", "images-idx3"))
    whole = images.read_bytes()
    for content, words in (
        (whole[:-1], r"\(30, 8, 8\) needs 1920 bytes; got 1919"),
        (whole + b"x", r"\(30, 8, 8\) needs 1920 bytes; got 1921"),
        (whole[:7], r"starts with .*; expected an IDX file, rank 3"),
        (labels.read_bytes(), r"expected an IDX file, rank 3"),
        (idx(np.zeros((1, 1, 1), np.uint8)).replace(b"\0\0\0\1", b"\xff" * 4), "bytes; at most"),
    ):
        images.write_bytes(content)
        with pytest.raises(DataError, match=words):
            ImageData.read(tmp_path)
    packed = images.with_name(f"{images.name}.gz")
    images.unlink()
    packed.write_bytes(b"\x1f\x8b no gzip")
    with pytest.raises(DataError, match="cannot read"):
        ImageData.read(tmp_path)
    packed.unlink()
    with pytest.raises(DataError, match=f"expected pictures and labels; found only {labels.name}"):
        ImageData.read(tmp_path)


def test_cifar(tmp_path):
    images, labels = noise(40, 32, 32, 3), np.arange(40, dtype=np.uint8) % 10
    planes = images.transpose(0, 3, 1, 2).reshape(40, -1)
    records = np.concatenate([labels[:, None], planes], axis=1)
    for i, part in enumerate((records[:20], records[20:30]), 1):
        (tmp_path / f"data_batch_{i}.bin").write_bytes(part.tobytes())
    (tmp_path / "test_batch.bin").write_bytes(records[30:].tobytes())
    (tmp_path / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    data = ImageData.read(tmp_path)
    assert (data.classes, data.channels, data.side) == (tuple("abcdefghij"), 3, 32)
    np.testing.assert_array_equal(data.train.labels, labels[:30])
    np.testing.assert_array_equal(pixels(data.train, 32, 3), images[:30])
    np.testing.assert_array_equal(pixels(data.valid, 32, 3), images[30:])
    (tmp_path / "data_batch_2.bin").write_bytes(records.tobytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_2\.bin: 122919 bytes; expected a multiple"):
        ImageData.read(tmp_path)


def test_no_such_path(tmp_path):
    with pytest.raises(DataError, match="none: cannot read: No such file"):
        ImageData.read(tmp_path / "none")
    with pytest.raises(DataError, match=r"cannot read: .*embedded null"):
        ImageData.read("a\0b")
    save(noise(8, 8), tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png: expected pictures: a folder with one"):
        ImageData.read(tmp_path / "a.png")


def test_the_bound_is_above_what_people_have():
    assert arrays.MAX_BYTES > 60_000 * 96 * 96 * 3
