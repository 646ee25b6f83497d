"""ResNet on images in folders, as ImageNet comes (train/CLASS/*.jpg, val/CLASS/*.jpg): a DataLoader, SGD, a cosine.

    torchrun --nproc-per-node 4 examples/folder_images.py /data/imagenet --algorithm balanced --device cuda

Needs Pillow: pip install 'ownpace[images]'. `ownpace train --task images -t path=/data/imagenet` does the same
without a script.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import ownpace
from ownpace.tasks.decode_images import middle, random_part, read
from ownpace.tasks.image_folder import MEAN, STD, list_images
from ownpace.tasks.resnets import RESNETS


class FolderDataset(Dataset):
    """The images of one folder; for training cropped and turned at random, else their middle."""

    def __init__(self, root: str, part: str, size: int, classes: list[str] | None = None) -> None:
        self.listing = list_images(Path(root) / part, classes)
        self.size = size
        self.train = part == "train"

    def __len__(self) -> int:
        return len(self.listing.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = read(self.listing.path(index))
        # Drawn from torch's generator, which ownpace sets for each sample: the same image at any number of processes.
        box = random_part(*image.size, torch.rand(40).tolist()) if self.train else middle(*image.size)
        pixels = torch.from_numpy(np.array(image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)))
        if self.train and torch.rand(()) < 0.5:
            pixels = pixels.flip(1)
        normal = (pixels.permute(2, 0, 1) - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
        return normal, self.listing.targets[index]


def test(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    """The accuracy on the validation images."""
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in loader:
            correct += int((model(x.to(device)).argmax(1).cpu() == y).sum())
    model.train()
    return correct / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--algorithm", default="balanced")
    parser.add_argument("--model", default="resnet50", choices=list(RESNETS))
    parser.add_argument("--size", type=int, default=224, help="pixels of height and width")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=4, help="processes that load data")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()

    torch.manual_seed(1)
    number = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", number % torch.cuda.device_count()) if args.device == "cuda" else torch.device("cpu")
    train_set = FolderDataset(args.folder, "train", args.size)
    test_set = FolderDataset(args.folder, "val", args.size, train_set.listing.classes)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(test_set, 100, num_workers=args.workers)

    model = RESNETS[args.model](len(train_set.listing.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    with ownpace.join(args.algorithm) as fleet:
        model, optimizer = fleet.wrap(model, optimizer)
        batches = fleet.batches(train_loader)
        for epoch in range(1, args.epochs + 1):
            for x, y in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(x.to(device)), y.to(device), label_smoothing=0.1).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                optimizer.step()
            accuracy = fleet.evaluate(lambda model: test(model, test_loader, device))
            fleet.print(f"epoch {epoch}: accuracy {accuracy:.1%}")
            scheduler.step()


if __name__ == "__main__":
    main()
