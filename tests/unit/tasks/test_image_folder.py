"""Images in folders: found, decoded by processes of their own, and refused in one line where they cannot be."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ownpace import make_algorithm
from ownpace.core.contract.errors import InputError
from ownpace.core.learning.augmented import TrainingSamples
from ownpace.core.learning.dataset_samples import as_samples
from ownpace.core.learning.drawn_ahead import DrawnAhead
from ownpace.core.learning.sampling import make_sampler
from ownpace.engines import Outcome
from ownpace.fleet import paces
from ownpace.tasks import Images, make_task
from ownpace.tasks.decode_images import decode, middle, random_part, uniforms
from ownpace.tasks.image_folder import MEAN, STD, FolderImages
from ownpace.tasks.image_loaders import ImageLoaders
from ownpace.tasks.resnets import RESNETS
from ownpace.testing import run_on


def write_image(path: Path, seed: int, size: tuple[int, int] = (24, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes, each with four images to train on and two to test on; PNG, which keeps pixels as they are."""
    for part, count in (("train", 4), ("val", 2)):
        for number, name in enumerate(("ant", "bee", "cat")):
            for index in range(count):
                write_image(tmp_path / "in" / part / name / f"{index}.png", 10 * number + index)
    return tmp_path / "in"


def task(folder: Path, **parameters: Any) -> Images:
    return Images(str(folder), **{"model_name": "resnet18", "size": 8, "loaders": 1, **parameters})


def test_images_are_found_class_by_class(folder):
    (folder / "train" / "bee" / ".hidden").write_text("")
    (folder / "train" / "bee" / "notes.txt").write_text("")
    (folder / "train" / ".git").mkdir()
    images = make_task("images", "resnet18", {"path": str(folder), "size": "8", "loaders": "2"})
    train, test = as_samples(images.train_samples()), as_samples(images.test_samples())
    assert (len(train), len(test)) == (12, 6)
    inputs, targets = train.pick(torch.tensor([11, 0, 4]))
    assert targets.tolist() == [2, 0, 1]
    assert inputs.shape == (3, 3, 8, 8)
    # As one would do it by hand: the middle, resized, and then normalised.
    with Image.open(folder / "train" / "cat" / "3.png") as image:
        left, top, right, bottom = middle(24, 20)
        assert (right - left, bottom - top) == (17.5, 17.5)
        pixels = np.array(image.resize((8, 8), Image.Resampling.BILINEAR, box=(left, top, right, bottom)))
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (MEAN, STD))
    torch.testing.assert_close(inputs[0], (torch.from_numpy(pixels).permute(2, 0, 1) - mean) / std)
    assert images.model()(inputs).shape == (3, 3)


def written(path: Path, mode: str) -> np.ndarray:
    """Write one image in a mode; returns what it should be read as."""
    levels = np.arange(16, dtype=np.uint8).reshape(4, 4) * 17
    grey = Image.fromarray(levels)
    if mode == "I;16":
        Image.fromarray(levels.astype(np.uint16) * 257).save(path)
        return np.stack([levels] * 3, 2)
    if mode == "1":
        grey.convert("1", dither=Image.Dither.NONE).save(path)
        return np.stack([np.where(levels > 127, 255, 0)] * 3, 2)
    if mode == "P":  # with a transparency for each colour, of which Pillow warns
        image = grey.convert("P")
        image.save(path, transparency=bytes(range(256)))
        return np.stack([levels] * 3, 2)
    colours = np.stack([levels, levels.T, 255 - levels], 2)
    image = grey if mode in ("L", "LA") else Image.fromarray(colours)
    if mode in ("LA", "RGBA"):
        image.putalpha(100)
    image.convert(mode).save(path)
    return np.stack([levels] * 3, 2) if mode in ("L", "LA") else colours


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_images_of_any_kind_are_read(folder, mode, capfd):
    """Grey, with an alpha channel (which is left out), a palette, for print, and of 16 bits."""
    path = folder / "train" / "ant" / f"0.{'jpg' if mode == 'CMYK' else 'png'}"
    (folder / "train" / "ant" / "0.png").unlink()
    expected = written(path, mode)
    inputs, _ = task(folder, size=4).train_samples().pick(torch.tensor([0]))
    mean, std = (np.array(each).reshape(3, 1, 1) for each in (MEAN, STD))
    pixels = (inputs[0].numpy() * std + mean).transpose(1, 2, 0)
    whole = Image.fromarray(expected.astype(np.uint8)).resize((4, 4), Image.Resampling.BILINEAR, box=middle(4, 4))
    assert np.abs(pixels - np.array(whole)).max() < (24 if mode == "CMYK" else 1.01)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["a b.png", "ß日本.PNG", "a\nb.png", os.fsdecode(b"\xff.png")])
def test_images_of_any_name_are_read_and_named(folder, name):
    (folder / "train" / "bee").rename(folder / "train" / "b e e é")
    (folder / "val" / "bee").rename(folder / "val" / "b e e é")
    path = folder / "train" / "b e e é" / name
    write_image(path, 0)
    train = task(folder).train_samples()
    place = 4 + sorted(["0.png", "1.png", "2.png", "3.png", name]).index(name)
    assert len(train.pick(torch.tensor([place]))[0]) == 1
    path.write_bytes(b"no image")
    with pytest.raises(InputError) as caught:
        train.pick(torch.tensor([place]))
    assert str(caught.value).startswith(f"{path} cannot be read as an image: ")


def test_links_are_followed_and_hidden_files_are_none(folder, tmp_path):
    write_image(tmp_path / "elsewhere" / "x.png", 0)
    (folder / "train" / "dog").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (folder / "train" / "ant" / "9.png").symlink_to(tmp_path / "elsewhere" / "x.png")
    (folder / "train" / "ant" / "._0.png").write_bytes(b"no image")
    train = task(folder).train_samples()
    assert len(train) == 14
    inputs, targets = train.pick(torch.arange(14))
    assert targets.tolist() == [0] * 5 + [1] * 4 + [2] * 4 + [3]
    assert torch.equal(inputs[4], inputs[13])
    # One class alone may be there to test on.
    for name in ("bee", "cat"):
        for path in (folder / "val" / name).iterdir():
            path.unlink()
        (folder / "val" / name).rmdir()
    test = as_samples(task(folder).test_samples())
    assert test.pick(torch.arange(len(test)))[1].tolist() == [0, 0]


def test_a_part_lies_in_the_image_and_has_an_allowed_shape():
    for number in range(300):
        width, height = 1 + number % 37, 1 + number % 53
        left, top, right, bottom = random_part(width, height, uniforms(number))
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    parts = [random_part(400, 300, uniforms(number)) for number in range(2000)]
    shares = [(right - left) * (bottom - top) / 120_000 for left, top, right, bottom in parts]
    assert 0.078 < min(shares) < 0.1
    assert max(shares) > 0.95
    ratios = [(right - left) / (bottom - top) for left, top, right, bottom in parts]
    assert 0.73 < min(ratios) < max(ratios) < 1.36
    # An image far too wide: its middle.
    assert random_part(1000, 10, uniforms(0)) == (493, 0, 506, 10)


def test_a_number_decides_what_is_made_of_an_image(folder):
    path = str(folder / "train" / "ant" / "0.png")
    once, again, other = (decode(path, 8, number, flip=True) for number in (1, 1, 2))
    assert once == again != other
    both = [(decode(path, 8, number, flip=True), decode(path, 8, number, flip=False)) for number in range(20)]
    turned = sum(flipped != plain for flipped, plain in both)
    assert 4 < turned < 16
    # Whichever part of an image is taken, it is turned as often.
    turns = [draws[-1] < 0.5 for draws in map(uniforms, range(2000))]
    boxes = [random_part(400, 300, uniforms(number)) for number in range(2000)]
    areas = [(right - left) * (bottom - top) / 120_000 for left, top, right, bottom in boxes]
    assert [flipped != plain for flipped, plain in both] == turns[:20]
    means = [np.mean([area for area, turned in zip(areas, turns, strict=True) if turned == each]) for each in (0, 1)]
    assert abs(means[0] - means[1]) < 0.05
    first, second = next(pair for pair in both if pair[0] != pair[1])
    one, two = (np.frombuffer(each, np.uint8).reshape(8, 8, 3) for each in (first, second))
    assert np.array_equal(one, two[:, ::-1])


def test_what_is_loaded_ahead_is_what_would_be_loaded(folder):
    train = task(folder).train_samples()
    assert isinstance(train, FolderImages)
    copy = pickle.loads(pickle.dumps(train))
    ahead, plain = TrainingSamples(train, 3), TrainingSamples(copy, 3)
    assert ahead.visits
    assert ahead.loads
    sampler, same = (make_sampler("iid", 12, 1, seed=0, visits=True) for _ in range(2))
    drawn_ahead = DrawnAhead(sampler, ahead)
    position = drawn_ahead.position(0)
    for size in (3, 3, 2, 7, 1):
        drawn = drawn_ahead.draw(0, size)
        assert torch.equal(drawn, same.draw(0, size))
        assert torch.equal(ahead.pick(drawn)[0], plain.pick(drawn)[0])
    drawn_ahead.go_on(0, position)


def test_a_worker_that_has_drawn_ahead_goes_on_before_that(folder):
    train = TrainingSamples(task(folder).train_samples(), 0)
    first, second, plain = (make_sampler("shards", 12, 2, seed=0, visits=True) for _ in range(3))
    ahead = DrawnAhead(first, train)
    assert torch.equal(ahead.draw(1, 4), plain.draw(1, 4))
    second.go_on(1, ahead.position(1))
    assert torch.equal(second.draw(1, 4), plain.draw(1, 4))


@pytest.mark.parametrize("content", ["cut", "text", "empty", "bomb", "gone"])
def test_files_that_are_no_images_are_named_in_one_line(folder, content):
    path = folder / "train" / "bee" / "1.png"
    if content == "cut":
        write_image(path, 0, (200, 200))
        path.write_bytes(path.read_bytes()[:20_000])
    elif content == "bomb":  # a few kilobytes that unpack to 120 million pixels
        Image.new("1", (12_000, 10_000)).save(path)
    elif content == "gone":
        train = task(folder).train_samples()
        path.unlink()
    else:
        path.write_bytes(b"no image at all" if content == "text" else b"")
    train = task(folder).train_samples() if content != "gone" else train
    with pytest.raises(InputError, match=r"bee/1.png cannot be read as an image: .*; fetch it again") as caught:
        train.pick(torch.tensor([5]))
    assert "\n" not in str(caught.value)
    assert len(train.pick(torch.tensor([4]))[0]) == 1  # and the next one is read


def test_folders_that_are_not_as_they_should_be(folder):
    def refused(message: str) -> None:
        with pytest.raises(InputError, match=message):
            task(folder).train_samples()

    (folder / "val" / "dog").mkdir()
    refused(r"val has the class dog, of which there is nothing to train on; known: ant, bee, cat")
    (folder / "train" / "dog").mkdir()
    refused(r"train/dog has no images \(.jpg, ")
    (folder / "train").rename(folder / "elsewhere")
    refused(r"train cannot be read \(No such file or directory\); path names a folder with train/CLASS")
    (folder / "train").mkdir()
    refused("train has no folders; it needs one for each class")
    write_image(folder / "train" / "ant" / "1.png", 0)
    refused("train has the class ant alone")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"size": 0}, "size is 0"),
        ({"loaders": 1000}, "loaders is 1000; it must be at most 256"),
        ({"label_smoothing": -0.1}, "label_smoothing is -0.1"),
        ({"model_name": "vgg"}, "vgg"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(folder, parameters, message):
    with pytest.raises(InputError, match=message):
        task(folder, **parameters)


def test_loaders_end_with_whom_they_serve(folder, tmp_path):
    loaders = ImageLoaders(1)
    path = str(folder / "train" / "ant" / "0.png")
    assert len(loaders.start(path, 8, None, flip=False).result()) == 8 * 8 * 3
    (process,) = loaders._processes._all
    fifo = tmp_path / "waits.png"
    os.mkfifo(fifo)
    asked = loaders.start(str(fifo), 8, None, flip=False)
    with fifo.open("wb"):  # which waits until it is opened to be read, and whoever reads it waits then
        process.kill()
        process.wait()
    assert "ended while it read" in str(asked.exception())
    assert "(exit code -9)" in str(asked.exception())
    assert len(loaders.start(path, 8, None, flip=False).result()) == 8 * 8 * 3  # by another one
    processes = list(loaders._processes._all)
    assert len(processes) == 2
    loaders.close()
    assert all(process.returncode is not None for process in processes)


@pytest.mark.parametrize(("name", "parameters"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_resnets_have_the_sizes_of_the_paper(name, parameters):
    with torch.device("meta"):
        model = RESNETS[name](1000)
    assert sum(each.numel() for each in model.parameters()) == parameters
    assert {"conv1.weight", "layer4.1.bn2.weight", "layer2.0.downsample.0.weight", "fc.bias"} <= set(model.state_dict())


def trained(engine: str, folder: Path) -> Outcome:
    # So small a rate that nothing is learnt: running statistics then tell which pixels came, and in which order.
    settings: dict[str, Any] = {"batch_size": 4, "samples": 24, "lr": 1e-9, "eval_every": 24}
    return run_on(engine, make_algorithm("sync"), paces(1000, jitter=0.0), task=task(folder), **settings)[0]


def test_both_engines_train_on_folders(folder):
    """One worker, two epochs: the same images, cropped and turned alike, and in the same order."""
    process, virtual = (trained(engine, folder) for engine in ("process", "virtual"))
    assert [process.error, virtual.error] == [None, None]
    assert process.model["bn1.running_mean"].abs().max() > 1e-3
    torch.testing.assert_close(
        process.model["bn1.running_mean"], virtual.model["bn1.running_mean"], rtol=1e-3, atol=1e-5
    )


@pytest.mark.slow
def test_a_worker_that_meets_a_bad_file_ends_the_run_with_its_name(folder):
    (folder / "train" / "bee" / "1.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"bee/1.png cannot be read as an image"):
        trained("process", folder)
