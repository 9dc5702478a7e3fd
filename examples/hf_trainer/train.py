"""A script for torchrun: transformers' Trainer trains a small GPT-2 with random weights on random tokens."""

from __future__ import annotations

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCABULARY, SEQUENCE = 256, 32


def make_trainer(output: str, epochs: int, batch_size: int) -> Trainer:
    """A Trainer with its model and data: nothing is downloaded, and nothing is saved."""
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": VOCABULARY, "n_positions": SEQUENCE}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **no_dropout))
    data = [{"input_ids": row, "labels": row} for row in torch.randint(VOCABULARY, (512, SEQUENCE))]
    arguments = TrainingArguments(
        output,
        num_train_epochs=epochs,
        per_device_train_batch_size=batch_size,
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        use_cpu=True,
    )
    return Trainer(model, arguments, train_dataset=data)


def main() -> None:
    """Trains; started by torchrun."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="out")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()
    make_trainer(arguments.output, arguments.epochs, arguments.batch_size).train()


if __name__ == "__main__":
    main()
