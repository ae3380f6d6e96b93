"""A ``transformers.Trainer`` whose model trains as a pipeline: its arguments, its loop, its checkpoints.

    torchrun --standalone --nproc-per-node=2 examples/hf_trainer.py FOLDER
    python examples/hf_trainer.py FOLDER        # the plain Trainer in one process, which prints the same numbers

``PipelineTrainer`` is all that a script needs beside its own ``Trainer``. The Trainer's "wrapped model" is the
pipeline. Its ranks share a batch, as ranks of tensor parallelism do, which is what the mesh tells accelerate. A
checkpoint has weights and optimizer in ``checkpoint-3/step-000000006``, which ``from_pretrained`` reads. Evaluation
gives the loss: ``compute_metrics`` would need results that only the last stage's ranks have.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import weft

WORDS, LENGTH = 97, 24


class PipelineTrainer(Trainer):
    """A Trainer of a causal language model by :func:`weft.pipeline`."""

    def __init__(self, *args: Any, micro_batches: int, data: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.micro_batches, self.copies = micro_batches, data
        self.group = ExitStack()  # of the batches that are one step of the optimizer
        self.accelerator.state.device_mesh = init_device_mesh(
            self.args.device.type, (data, self.get_tp_size()), mesh_dim_names=("dp_replicate", "tp"))

    @cached_property
    def pipe(self) -> Any:
        """The pipeline, made when all that changes the model has been done."""
        example = next(iter(self.get_train_dataloader()))
        labels = example.pop("labels")
        return weft.pipeline(self.model, (), example, loss=self.loss, target=labels, data=self.copies,
                             micro_batches=self.micro_batches, compile=self.args.torch_compile,
                             autocast=torch.bfloat16 if self.args.bf16 else None)

    def loss(self, output: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The model's own loss, summed, and how many labels count."""
        total = self.model.loss_function(output.logits, labels, self.model.config.vocab_size, num_items_in_batch=1)
        return total, labels[:, 1:].ne(-100).sum()

    def get_tp_size(self) -> int:
        return self.args.world_size // self.copies

    def _wrap_model(self, *_: Any, **__: Any) -> Any:
        return self.pipe

    def create_optimizer(self, model: Any = None) -> Any:
        return super().create_optimizer(self.pipe)

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        return super().get_decay_parameter_names(self.model)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        batches, count = super().get_batch_samples(*args, **kwargs)
        self.group.enter_context(self.pipe.accumulate(len(batches)))
        return batches, count

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        share = self._get_num_items_in_batch([inputs], self.args.device) / num_items_in_batch
        loss = self.pipe.step(target=inputs.pop("labels"), **inputs)
        if self.accelerator.sync_gradients:
            self.group.close()
        return loss * share

    def prediction_step(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return torch.tensor(self.pipe.eval_step(target=inputs.pop("labels"), **inputs)), None, None

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        self.gather_function = lambda losses: self.accelerator.gather_for_metrics(losses)[:len(losses) * self.copies]
        return super().evaluation_loop(*args, **kwargs)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if not _internal_call:
            self._save(output_dir, self.pipe.state_dict())

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        path = self.pipe.save(output_dir, self.optimizer, extra={"rate": self.lr_scheduler})
        if self.args.should_save:
            self.model.config.save_pretrained(path)  # so that from_pretrained reads it

    def _load_from_checkpoint(self, *_: Any) -> None:
        """The weights come with the optimizer's state."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self.pipe.resume(checkpoint, self.optimizer, extra={"rate": self.lr_scheduler})


def texts(count: int, seed: int) -> list[dict[str, Tensor]]:
    """Texts in which each word says what the next one is; some end early."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for row in range(count):
        ids = (torch.randint(12, (1,), generator=generator) + 5 * torch.arange(LENGTH)) % 12
        labels = torch.where(torch.arange(LENGTH) < LENGTH - row % 7, ids, -100)
        found.append({"input_ids": ids, "labels": labels})
    return found


def main() -> None:
    """What each rank does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=int, default=1)
    parser.add_argument("--rows", type=int, default=8, help="of a batch of each copy")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
                                         num_attention_heads=4, num_key_value_heads=2, pad_token_id=0))
    args = TrainingArguments(
        str(asked.folder), use_cpu=not torch.cuda.is_available(), per_device_train_batch_size=asked.rows,
        per_device_eval_batch_size=asked.rows, gradient_accumulation_steps=2, max_grad_norm=0.5, learning_rate=1e-2,
        weight_decay=0.1, lr_scheduler_type="cosine", warmup_steps=2, num_train_epochs=asked.epochs, logging_steps=1,
        eval_strategy="epoch", save_strategy="epoch", report_to=[], disable_tqdm=True)
    data = {"train_dataset": texts(44, 1), "eval_dataset": texts(20, 2)}
    trainer = (Trainer(model, args, **data) if args.world_size == 1 else
               PipelineTrainer(model, args, micro_batches=4, data=asked.data, **data))
    trainer.train(resume_from_checkpoint=asked.resume)
    trainer.save_model(str(asked.folder / "trained"))
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            said = [f"{name} {entry[name]:.4f}" for name in ("loss", "grad_norm", "learning_rate", "eval_loss")
                    if name in entry]
            print(f"step {entry['step']}  {'  '.join(said)}") if said else None


if __name__ == "__main__":
    main()
