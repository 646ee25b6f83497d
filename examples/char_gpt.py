"""A small GPT that learns Python from the standard library, character by character, on a fleet of machines.

AdamW with weight decay on matrices only, warm-up and cosine, gradient accumulation, clipping, torch.compile if wanted,
a checkpoint now and then, and going on from it.

    torchrun --nproc-per-node 4 examples/char_gpt.py --algorithm stride --save checkpoint.pt --resume checkpoint.pt

examples/plain/char_gpt.py is the same script for one machine; `diff -w` shows what changes.
"""

import argparse
import inspect
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import ownpace

BLOCK, WIDTH, HEADS, LAYERS = 64, 64, 4, 2


class Block(nn.Module):
    """Attention to what came before, then a small perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.project = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.attention(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(heads.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Embeddings, blocks, and a head that shares its weights with the embedding."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.places = nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        logits = self.head(self.norm(self.blocks(hidden)))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def read_text() -> tuple[torch.Tensor, torch.Tensor, int]:
    """Training text, validation text, and how many different characters they have."""
    text = inspect.getsource(argparse)
    characters = sorted(set(text))
    data = torch.tensor([characters.index(character) for character in text])
    return data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :], len(characters)


def get_batch(data: torch.Tensor, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pieces of the text from random places, and the same, one character later."""
    starts = torch.randint(len(data) - BLOCK - 1, (samples,))
    places = starts[:, None] + torch.arange(BLOCK + 1)
    return data[places[:, :-1]], data[places[:, 1:]]


def validate(model: nn.Module, data: torch.Tensor) -> float:
    """The mean loss over pieces that are the same every time."""
    model.eval()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(7)
        loss = model(*get_batch(data, 128)).item()
    model.train()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="stride")
    parser.add_argument("--batch-size", type=int, default=16, help="on each machine")
    parser.add_argument("--accumulate", type=int, default=2, help="batches in one step")
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--every", type=int, default=50, help="updates between two validations and checkpoints")
    parser.add_argument("--save", default="", help="where to save checkpoints")
    parser.add_argument("--resume", default="", help="the checkpoint to go on from, if it exists")
    args = parser.parse_args()

    torch.manual_seed(1337)
    train, validation, vocabulary = read_text()
    model = GPT(vocabulary)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.99))

    def factor(update: int) -> float:
        if update < args.warmup:
            return (update + 1) / args.warmup
        progress = min(1.0, (update - args.warmup) / max(1, args.updates - args.warmup))
        return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))

    # It follows the fleet, in steps of all machines.
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    forward = torch.compile(model) if args.compile else model

    with ownpace.join(args.algorithm) as fleet:
        model, optimizer = fleet.wrap(model, optimizer, scheduler=scheduler)
        if args.resume and Path(args.resume).exists():
            fleet.load(args.resume)
            fleet.print(f"goes on after update {fleet.updates}")
        batches = fleet.batches(
            lambda batch_size: get_batch(train, batch_size), batch_size=args.batch_size, updates=args.updates
        )
        shown = fleet.updates // args.every
        for number, (x, y) in enumerate(batches, 1):
            loss = forward(x, y) / args.accumulate
            loss.backward()
            if number % args.accumulate:
                continue
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if fleet.is_main and fleet.updates // args.every > shown:
                shown = fleet.updates // args.every
                loss_now = fleet.evaluate(lambda model: validate(model, validation))
                print(f"update {fleet.updates}: validation loss {loss_now:.3f}")
                if args.save:
                    fleet.save(args.save)
        if fleet.is_main and args.save:
            fleet.save(args.save)
    if fleet.is_main:
        print(f"validation loss {validate(model, validation):.3f}, learning rate {scheduler.get_last_lr()[0]:.6f}")


if __name__ == "__main__":
    main()
