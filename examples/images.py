"""Handwritten digits on a fleet: a DataLoader, SGD with momentum, StepLR once an epoch, a test after each epoch.

    torchrun --nproc-per-node 4 examples/images.py --algorithm stride

examples/plain/images.py is the same script for one machine; `diff` shows what changes.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import ownpace


class Net(nn.Module):
    """Two convolutions, dropout, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(self.dropout(x.flatten(1))))
        return self.fc2(x)


def test(model: nn.Module, loader: DataLoader) -> float:
    """The accuracy on the test set."""
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in loader:
            correct += int((model(x).argmax(1) == y).sum())
    model.train()
    return correct / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="stride")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--gamma", type=float, default=0.8, help="factor on the learning rate after each epoch")
    parser.add_argument("--workers", type=int, default=1, help="processes that load data")
    parser.add_argument("--save", default="", help="where to save the model")
    args = parser.parse_args()

    torch.manual_seed(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    dataset = TensorDataset(images, torch.tensor(digits.target))
    train_set, test_set = torch.utils.data.random_split(dataset, [1437, 360])
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(test_set, 360)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=args.gamma)

    with ownpace.join(args.algorithm) as fleet:
        model, optimizer = fleet.wrap(model, optimizer)
        batches = fleet.batches(train_loader)
        for epoch in range(1, args.epochs + 1):
            for number, (x, y) in enumerate(batches):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                if number % 20 == 0:
                    fleet.print(f"epoch {epoch}, batch {number} of {len(batches)}: loss {loss.item():.3f}")
            accuracy = fleet.evaluate(lambda model: test(model, test_loader))
            fleet.print(f"epoch {epoch}: accuracy {accuracy:.1%}, learning rate {scheduler.get_last_lr()[0]:.4f}")
            scheduler.step()

    if args.save and fleet.is_main:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
