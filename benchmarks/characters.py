"""Random text for a small GPT to chew on: what matters in a benchmark is how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ownpace.core.learning.task import Task, TensorSamples

VOCABULARY, BLOCK, WIDTH, HEADS, LAYERS = 96, 64, 128, 4, 4


class Block(nn.Module):
    """Attention to what came before, then a small perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.attention(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(heads.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class CharGpt(nn.Module):
    """A GPT of 0.8 M parameters in 52 layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.tokens(x) + self.places.weight)).flatten(0, 1)


@dataclass(frozen=True)
class Characters(Task):
    """The GPT, and text of its length."""

    model_name: str = "gpt"

    def __post_init__(self) -> None:
        text = torch.randint(VOCABULARY, (4096, BLOCK + 1), generator=torch.Generator().manual_seed(0))
        object.__setattr__(self, "_samples", TensorSamples(text[:, :-1].contiguous(), text[:, 1:].contiguous()))

    def model(self) -> nn.Module:
        return CharGpt()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets.flatten())

    def num_right(self, outputs: Tensor, targets: Tensor) -> None:
        return None

    def train_samples(self) -> TensorSamples:
        return self._samples

    def test_samples(self) -> TensorSamples:
        return TensorSamples(self._samples.inputs[:1], self._samples.targets[:1])
