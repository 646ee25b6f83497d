"""Handwritten digits with Lightning: a DataLoader, SGD, a schedule stepped at every batch, validation, checkpoints.

    torchrun --nproc-per-node 4 examples/lightning_images.py --algorithm stride

`--algorithm none` trains with Lightning alone. Needs `pip install 'ownpace[lightning,data]'`.
"""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

from ownpace.integrations.lightning import OwnpaceStrategy  # ←


class Digits(L.LightningModule):
    """Two convolutions, two linear layers."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = F.cross_entropy(self.layers(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        x, y = batch
        accuracy = (self.layers(x).argmax(1) == y).float().mean()
        self.log("val_accuracy", accuracy, prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9, weight_decay=1e-4)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.lr, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="stride")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--out", default="runs/lightning", help="folder of checkpoints and logs")
    args = parser.parse_args()

    L.seed_everything(1, verbose=False)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    dataset = TensorDataset(images, torch.tensor(digits.target))
    train_set, val_set = random_split(dataset, [1437, 360], torch.Generator().manual_seed(1))
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers)
    val_loader = DataLoader(val_set, 90)

    model = Digits(args.lr)
    trainer = L.Trainer(
        strategy="auto" if args.algorithm == "none" else OwnpaceStrategy(args.algorithm),  # ←
        accelerator="cpu",
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(args.out, "best", monitor="val_accuracy", mode="max"), LearningRateMonitor()],
        logger=CSVLogger(args.out, name="", version=""),
        log_every_n_steps=10,
    )
    trainer.fit(model, train_loader, val_loader)
    if trainer.is_global_zero:
        accuracy, updates = float(trainer.callback_metrics["val_accuracy"]), trainer.global_step
        print(f"accuracy {accuracy:.1%} after {updates} updates")


if __name__ == "__main__":
    main()
