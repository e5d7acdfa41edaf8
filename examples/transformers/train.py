"""A small language model, trained from scratch with the Trainer of Hugging Face on made-up sentences.

An ordinary script: nothing of Everstep is imported. The Trainer saves by itself, and goes on from
EVERSTEP_RESUME_PATH, the newest of its checkpoints that is whole; that is the one line that differs.

What drives it, from the environment: STEPS (60), SAVE_EVERY (10), OUT (out).
"""

from __future__ import annotations

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

WORDS, LENGTH, SENTENCES = 97, 32, 4096


def sentences() -> list[dict[str, torch.Tensor]]:
    """Each counts in steps of its own: every word follows from the two before it."""
    count = torch.arange(LENGTH)
    words = ((index + count * (1 + index % 7)) % WORDS for index in range(SENTENCES))
    return [{"input_ids": sentence, "labels": sentence} for sentence in words]


def model() -> GPT2LMHeadModel:
    torch.manual_seed(7)
    size = GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=None,
        eos_token_id=None,
        # A rank that is killed while it saves leaves no random numbers to drop out the same units by.
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
    )
    return GPT2LMHeadModel(size)


def main() -> None:
    steps, every = int(os.environ.get("STEPS", "60")), int(os.environ.get("SAVE_EVERY", "10"))
    arguments = TrainingArguments(
        output_dir=os.environ.get("OUT", "out"),
        max_steps=steps,
        save_steps=every,
        logging_steps=1,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        ddp_find_unused_parameters=False,
        report_to="none",
        use_cpu=True,
    )
    trainer = Trainer(model=model(), args=arguments, train_dataset=sentences())
    trainer.train(resume_from_checkpoint=os.environ.get("EVERSTEP_RESUME_PATH"))
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
