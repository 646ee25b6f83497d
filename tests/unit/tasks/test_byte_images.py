"""Images that are cropped and mirrored for training: as one would do it by hand, one by one."""

from __future__ import annotations

import torch

from ownpace.core.learning.augmented import AugmentedSamples, TrainingSamples, random_numbers
from ownpace.core.learning.task import TensorSamples
from ownpace.tasks.byte_images import ByteImages, CroppedImages


def some_images(count=40) -> ByteImages:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (count, 3, 6, 5), dtype=torch.uint8, generator=generator)
    mean, scale = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1), torch.tensor(0.5)
    return ByteImages(images, torch.arange(count), mean, scale)


def by_hand(images: ByteImages, index: int, down: int, right: int, *, mirrored: bool) -> torch.Tensor:
    bordered = torch.zeros(3, 6 + 4, 5 + 4)
    bordered[:, 2:8, 2:7] = images.images[index]
    part = bordered[:, down : down + 6, right : right + 5]
    return ((part.flip(2) if mirrored else part) - images.mean) * images.scale


def test_each_image_is_cropped_and_mirrored_by_its_own_number():
    images = some_images()
    cropped = CroppedImages.of(images, 2, flip=True)
    indices, randoms = torch.tensor([3, 3, 17, 5]), torch.tensor([0, 24 + 25, 3 + 5 * 1, 2 + 5 * 2 + 25])
    inputs, targets = cropped.pick_augmented(indices, randoms)
    assert targets.tolist() == indices.tolist()
    places = [(0, 0, False), (4, 4, True), (3, 1, False), (2, 2, True)]
    for found, index, (down, right, mirrored) in zip(inputs, indices.tolist(), places, strict=True):
        assert torch.equal(found, by_hand(images, index, down, right, mirrored=mirrored))
    # As they are, for evaluation.
    assert torch.equal(cropped.pick(indices)[0], images.pick(indices)[0])


def test_all_places_and_both_sides_are_as_likely():
    numbers = random_numbers(0, torch.arange(100_000))
    for choices in (9, 2):
        counts = torch.bincount(numbers % choices)
        assert (counts - 100_000 / choices).abs().max() < 5 * (100_000 / choices) ** 0.5
    assert int(numbers.min()) >= 0
    assert len(set(numbers.tolist())) == 100_000


def test_a_change_is_a_function_of_seed_sample_and_visit():
    images = some_images()
    cropped = CroppedImages.of(images, 2, flip=True)
    assert isinstance(cropped, AugmentedSamples)
    assert not TrainingSamples(images, 0).visits
    first, other = TrainingSamples(cropped, 0), TrainingSamples(cropped, 1)
    assert first.visits
    drawn = torch.arange(30)
    whole = first.pick(drawn)[0]
    assert torch.equal(torch.cat([first.pick(part)[0] for part in drawn.split(7)]), whole)  # whatever it comes with
    assert not torch.equal(first.pick(drawn + len(images))[0], whole)
    assert torch.equal(first.pick(drawn + len(images))[1], drawn)
    assert not torch.equal(other.pick(drawn)[0], whole)


def test_numbers_can_be_cropped_too():
    samples = TensorSamples(torch.rand(8, 1, 4, 4), torch.arange(8))
    cropped = CroppedImages.of(samples, 1, flip=False)
    assert torch.equal(cropped.pick(torch.arange(8))[0], samples.inputs)
    middle = torch.full((8,), 1 + 3 * 1)
    assert torch.equal(cropped.pick_augmented(torch.arange(8), middle)[0], samples.inputs)
