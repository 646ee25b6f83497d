"""A tiny BERT through Transformers' Trainer: which of two words comes first in a sentence? No downloads.

    torchrun --nproc-per-node 4 examples/trainer_bert.py --algorithm stride

`--algorithm none` trains with the Trainer alone. Needs `pip install 'ownpace[hf]'`.
"""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, EvalPrediction, Trainer, TrainingArguments, set_seed

from ownpace.integrations.hf import OwnpaceTrainer  # ←

PADDING, START, FIRST, SECOND, OTHERS = 0, 1, 2, 3, 4


class Sentences(Dataset):
    """Sentences of 6 to 16 random words, two of which are FIRST and SECOND; the label says which comes first."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.samples = []
        for _ in range(size):
            length = int(torch.randint(6, 17, (), generator=generator))
            words = torch.randint(OTHERS, 40, (length,), generator=generator)
            places = torch.randperm(length, generator=generator)[:2]
            words[places] = torch.tensor([FIRST, SECOND])
            label = int(places[0] < places[1])
            self.samples.append({"input_ids": [START, *words.tolist()], "labels": label})

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict:
        return self.samples[index]


def collate(samples: list[dict]) -> dict[str, torch.Tensor]:
    """Make all sentences of a batch as long as its longest."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = [sample["input_ids"] + [PADDING] * (longest - len(sample["input_ids"])) for sample in samples]
    input_ids = torch.tensor(ids)
    labels = torch.tensor([sample["labels"] for sample in samples])
    return {"input_ids": input_ids, "attention_mask": (input_ids != PADDING).long(), "labels": labels}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """The share of right answers."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="stride")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--out", default="runs/trainer", help="folder of checkpoints")
    args = parser.parse_args()

    set_seed(1)
    config = BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=20,
    )
    training = TrainingArguments(
        args.out,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=100,
        learning_rate=args.lr,
        warmup_steps=20,
        weight_decay=0.01,
        logging_steps=20,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        report_to=[],
        use_cpu=True,
    )
    kind, ours = (Trainer, {}) if args.algorithm == "none" else (OwnpaceTrainer, {"algorithm": args.algorithm})  # ←
    trainer = kind(
        BertForSequenceClassification(config),
        training,
        data_collator=collate,
        train_dataset=Sentences(args.samples, seed=1),
        eval_dataset=Sentences(400, seed=2),
        compute_metrics=accuracy,
        **ours,  # ←
    )
    trainer.train()
    if trainer.is_world_process_zero():
        print(f"accuracy {trainer.evaluate()['eval_accuracy']:.1%} after {trainer.state.global_step} updates")
        trainer.save_model(args.out)


if __name__ == "__main__":
    main()
