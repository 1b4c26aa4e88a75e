"""Batches of pictures: order, resuming, changes, labels, unreadable files, the cache."""

import numpy as np
import pytest

pytest.importorskip("PIL", reason="Pillow, of the images extra, is not installed")
from pictures import class_folders, noise

from toynn.data import image_batches
from toynn.data._parts import Labelled, Pixels
from toynn.data.augment import Augment
from toynn.data.batch import Batch
from toynn.data.image_batches import Fitted, HeldOut, RandomImages
from toynn.data.images import ImageData
from toynn.errors import ConfigError, DataError

COUNT = 10
#: Picture i has shade i everywhere, and label i.
SHADES = np.broadcast_to(np.arange(COUNT, dtype=np.uint8)[:, None, None, None], (COUNT, 4, 4, 1))
PART = Labelled(Pixels(SHADES), np.arange(COUNT, dtype=np.int32))


def batches(size=4, seed=0, augment=None, part=PART):
    return RandomImages(Fitted(part, 4, 1), COUNT, size, seed, augment)


def test_every_epoch_shows_each_picture_once_in_another_order():
    source = batches(size=5)
    epochs = [np.concatenate([next(source).read().labels for _ in range(2)]) for _ in range(3)]
    assert all(sorted(epoch.tolist()) == list(range(COUNT)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3


def test_a_batch_is_what_a_step_takes():
    image, cls_idx, labels = batch = next(batches()).read()
    assert (image.shape, image.dtype, labels.dtype) == ((4, 4, 4, 1), np.uint8, np.int32)
    assert cls_idx.tolist() == [0]
    assert batch.rows == 4
    np.testing.assert_array_equal(image[:, 0, 0, 0], labels)


def test_rows_that_count():
    images = np.zeros((3, 4, 4, 1), np.uint8)
    first = np.zeros(1, np.int32)
    assert Batch(images, first, np.array([1, -100, 0])).rows == 2
    assert Batch(images, first, np.array([[0, 1], [0, 0], [0.5, 0.5]])).rows == 2


ALL = Augment(crop=1, flip=True, mixup=0.4, smoothing=0.1)


@pytest.mark.parametrize("augment", [Augment(), ALL])
def test_same_seed_same_batches_and_the_state_resumes(augment):
    part = Labelled(Pixels(noise(COUNT, 4, 4, 1)), PART.labels)
    sources = [batches(3, seed, augment, part) for seed in (7, 7, 8)]
    first, again, other = ([next(source).read() for _ in range(5)] for source in sources)
    equal = [all(map(np.array_equal, *pair)) for pair in zip(first, again, strict=True)]
    assert all(equal)
    assert not np.array_equal(first[0].inputs, other[0].inputs)
    state = sources[0].state
    assert state == {"seed": 7, "position": 15}
    sources[2].state = state
    for _ in range(5):
        assert all(map(np.array_equal, next(sources[0]).read(), next(sources[2]).read()))


def test_flip_mirrors_about_half():
    images, labels = noise(1000, 2, 3, 1), np.zeros(1000, np.int32)
    flipped, _ = Augment(flip=True)(images, labels, 2, np.random.default_rng(0))
    mirrored = (flipped == images[:, :, ::-1]).all(axis=(1, 2, 3))
    same = (flipped == images).all(axis=(1, 2, 3))
    assert (mirrored | same).all()
    assert 400 < mirrored.sum() < 600


def test_crop_moves_and_repeats_the_edge():
    image = np.arange(25, dtype=np.uint8).reshape(1, 5, 5, 1)
    labels = np.zeros(500, np.int32)
    moved, _ = Augment(crop=2)(image.repeat(500, 0), labels, 2, np.random.default_rng(0))
    seen = set()
    for each in moved[..., 0]:
        rows, columns = (each[:, 2] // 5).tolist(), (each[2] % 5).tolist()
        dy, dx = rows[2] - 2, columns[2] - 2
        assert rows == np.clip(np.arange(5) + dy, 0, 4).tolist()
        assert columns == np.clip(np.arange(5) + dx, 0, 4).tolist()
        seen.add((dy, dx))
    assert len(seen) == 25


def test_smoothing():
    labels = np.array([2, 0], np.int32)
    _, dense = Augment(smoothing=0.2)(SHADES[:2], labels, 4, np.random.default_rng(0))
    np.testing.assert_allclose(dense, [[0.05, 0.05, 0.85, 0.05], [0.85, 0.05, 0.05, 0.05]])
    assert dense.dtype == np.float32


def test_mixup_mixes_pictures_and_labels_by_the_same_share():
    images = np.zeros((2, 4, 4, 1), np.uint8)
    images[0] = 200
    shares = []
    for seed in range(50):
        mixed, dense = Augment(mixup=0.5)(
            images, np.array([0, 1], np.int32), 2, np.random.default_rng(seed)
        )
        share = float(dense[0, 0])
        np.testing.assert_allclose(dense, [[share, 1 - share], [1 - share, share]], atol=1e-6)
        assert mixed.dtype == np.uint8
        np.testing.assert_allclose(mixed[:, 0, 0, 0], [200 * share, 200 * (1 - share)], atol=0.51)
        shares.append(share)
    assert min(shares) < 0.1 < 0.9 < max(shares)


@pytest.mark.parametrize(
    "options", [{"crop": -1}, {"mixup": -0.1}, {"mixup": np.nan}, {"smoothing": 1.0}]
)
def test_augment_is_checked(options):
    with pytest.raises(ConfigError, match="Augment: crop and mixup must not be negative"):
        Augment(**options)


def test_held_out_batches_are_the_same_each_time_and_the_last_is_smaller():
    held = HeldOut(Fitted(PART, 4, 1), 4, 100)
    labels = [batch.labels.tolist() for batch in held]
    assert labels == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] == [b.labels.tolist() for b in held]
    assert [b.labels.tolist() for b in HeldOut(Fitted(PART, 4, 1), 4, 5)] == [[0, 2, 4, 6], [8]]


@pytest.fixture
def broken(tmp_path):
    """Folders of 8 pictures to train on and 2 held out, one of each truncated behind its head."""
    class_folders(tmp_path / "train", {"a": 4, "b": 4}, side=40)
    class_folders(tmp_path / "valid", {"a": 2}, side=40)
    for path in (tmp_path / "train/b/01.png", tmp_path / "valid/a/00.png"):
        path.write_bytes(path.read_bytes()[:200])
    return tmp_path


def test_a_truncated_picture_stops_or_is_skipped_and_counted_once(broken):
    data = ImageData.read(broken)
    with pytest.raises(DataError, match=r"valid/a/00\.png: cannot read the .*skip_unreadable"):
        list(HeldOut(Fitted(data.valid, 4, 1), 4, 100))
    data = ImageData.read(broken, skip_unreadable=True)
    images = Fitted(data.train, 4, 1, data.unreadable)
    source, again = RandomImages(images, 2, 5, 0), RandomImages(images, 2, 5, 0)
    drawn = [next(source).read() for _ in range(6)]
    assert all(len(batch.labels) == 5 for batch in drawn)
    assert np.bincount(np.concatenate([b.labels for b in drawn])).argmax() == 0  # b has three left
    valid = HeldOut(Fitted(data.valid, 4, 1, data.unreadable), 4, 100)
    assert [batch.labels.tolist() for batch in valid] == [[0]] == [[0] for _ in valid]
    assert [reason.split(": ")[0][-14:] for reason in data.unreadable] == [
        "train/b/01.png",
        "valid/a/00.png",
    ]
    again.state = source.state
    assert all(map(np.array_equal, next(source).read(), next(again).read()))


def test_nothing_readable_is_an_error_though_files_may_be_skipped(broken):
    for path in broken.glob("train/*/*.png"):
        path.write_bytes(path.read_bytes()[:200])
    data = ImageData.read(broken, skip_unreadable=True)
    with pytest.raises(DataError, match=r"none of 8 pictures can be read; .*: cannot"):
        next(RandomImages(Fitted(data.train, 4, 1, data.unreadable), 2, 5, 0))


def test_pictures_are_kept_as_far_as_there_is_room(monkeypatch, tmp_path):
    monkeypatch.setattr(image_batches, "CACHE_BYTES", 5 * 16)
    data = ImageData.read(class_folders(tmp_path, {"a": 5, "b": 5}))
    images = Fitted(data.train, 4, 1)
    before = [images.get(i).copy() for i in range(8)]
    for path in data.train.pictures.paths:
        path.unlink()
    for i in range(5):
        np.testing.assert_array_equal(images.get(i), before[i])
    with pytest.raises(DataError, match="No such file"):
        images.get(5)
