"""The LightningModule: policy and reference, one epoch = one phase, no formula."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from stabledrl.errors import UserError
from stabledrl.functional.reduce import masked_mean
from stabledrl.policy import Policy
from stabledrl.share import Share
from stabledrl.training import checkpoints, processes
from stabledrl.training.phases import Phase, PhaseCollector, PhaseDataset
from stabledrl.training.resolution import warn_of_lost_steps
from stabledrl.training.sharding import in_step, shard
from stabledrl.training.spikes import Spikes
from stabledrl.training.validation import Validation
from stabledrl.types import Batch, LossOutput, Prompt, Scorer, to_device
from stabledrl.whole_step import over_processes

__all__ = ["PolicyModule", "ReinforcementModule", "Validation", "merge"]

OptimizerFactory = Callable[[Iterable[torch.nn.Parameter]], Optimizer]
Schedule = Callable[[int, int], float]


class PolicyModule(pl.LightningModule):
    """What reinforcement learning and supervision share: optimiser, validation, logging of steps.

    history: every validation so far, by optimiser step. seconds: wall time by part.
    computed: by name, what the current update came from, in the order of computation; the guard
    looks there for what broke first. observed: what callbacks add to the row of the current update,
    in `on_before_optimizer_step`, where they come before the module.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: OptimizerFactory,
        schedule: Schedule,
        validation: Validation,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.validation = validation
        self.history: list[dict[str, float]] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.computed: list[tuple[str, Tensor]] = []
        self.observed: dict[str, Tensor] = {}
        self._row: dict[str, Tensor] = {}
        self._gradient_norm: Tensor | None = None
        self._optimizer = optimizer
        self._schedule = schedule
        self._weights = checkpoints.Weights.of(self)
        self.strict_loading = not self._weights.frozen  # `Weights.require` is as strict

    @property
    def share(self) -> Share:
        """The part of the work that is this process's."""
        return replace(processes.share(), in_step=in_step)

    def configure_model(self) -> None:
        """Divide the weights over the processes, if the strategy does; it asks at every start."""
        if self.device_mesh is not None:
            shard(self.policy, self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimiser over all trainable parameters, its rate set at every step."""
        optimizer = self._optimizer([p for p in self.policy.parameters() if p.requires_grad])
        warn_of_lost_steps(optimizer)
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = LambdaLR(optimizer, lambda step: self._schedule(step, total))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def val_dataloader(self) -> DataLoader[Any]:
        """Held-out prompts."""
        return self.validation.loader(self.share.processes)

    def validation_step(self, prompts: list[Prompt], batch_index: int) -> None:
        """Greedy solve rate (pass@1) and reward."""
        rollout = self.validation(self.policy, prompts, self.share)
        self.seconds["validation"] += rollout.sampling_s + rollout.grading_s
        values = {"val/solved": rollout.solved.mean(), "val/reward": rollout.reward.nanmean()}
        # Lightning takes `step` for the row's number, which would else be one too low within fit
        values["step"] = torch.tensor(float(self.global_step))
        self.log_dict(values, batch_size=len(prompts), on_step=False, on_epoch=True)

    def on_validation_epoch_end(self) -> None:
        """Remember the validation."""
        values = {
            name: float(value)
            for name, value in self.trainer.callback_metrics.items()
            if name.startswith("val/")
        }
        self.history.append({"step": float(self.global_step), **values})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The validations so far; of the weights those that are trained."""
        checkpoint["history"] = self.history
        self._weights.reduce(checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from there; UserError if it is of other weights."""
        if "state_dict" in checkpoint:  # else the strategy has loaded and checked it
            self._weights.require(checkpoint)
        self.history = list(checkpoint["history"])

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Frozen dataclasses are rebuilt rather than written into."""
        return to_device(batch, device)

    def gradient_norm(self) -> Tensor:
        """Norm of the whole gradient of an update, before clipping; for `on_before_optimizer_step`.

        Measured once: the guard, which comes first, may drop the gradient before it is logged.
        """
        if self._gradient_norm is None:
            gradients = [p.grad for p in self.policy.parameters() if p.grad is not None]
            self._gradient_norm = processes.total_norm(gradients)
        return self._gradient_norm

    def log_step(self, metrics: dict[str, Tensor], optimizer: Optimizer) -> None:
        """Log one row of an optimiser step: the metrics, the learning rate, the gradient norm.

        Handed to the loggers at once: `self.log` keeps a metric object per name, which took 4 % of
        a run's time. Where not every step is written, a row holds the newest value of every metric
        since the row before.
        """
        metrics |= self.observed
        metrics["train/grad_norm"] = self.gradient_norm()
        self._gradient_norm, self.computed, self.observed = None, [], {}
        metrics["train/learning_rate"] = torch.tensor(optimizer.param_groups[0]["lr"])
        self.trainer.callback_metrics.update(metrics)  # for the progress bar and checkpoints
        self._row |= metrics
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and (self.global_step + 1) % every == 0:
            row = {name: float(value) for name, value in self._row.items()}
            self._row = {}
            for logger in self.loggers:
                logger.log_metrics(dict(row), step=self.global_step)
                logger.save()


class ReinforcementModule(PolicyModule):
    """Policy-gradient training on rollouts.

    reference: the policy training starts from (`Policy.frozen`), outside optimiser and checkpoint;
    None where nothing reads it. phase: number of the current phase, counted here because
    Lightning's `current_epoch` lags by one after a resume.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: OptimizerFactory,
        schedule: Schedule,
        validation: Validation,
        collector: PhaseCollector,
    ) -> None:
        super().__init__(policy, optimizer, schedule, validation)
        self.collector = collector
        self.phase = 0
        self.last_phase: Phase | None = None
        self.rows: list[dict[str, Tensor]] = []
        self._phase_begins = False
        self._began = 0.0
        self._parts: list[dict[str, Tensor]] = []
        self._spikes = Spikes()
        penalty = collector.algorithm.penalty
        frozen = penalty.coefficient > 0 and penalty.reference == "frozen"
        frozen = frozen or collector.settings.drift_every > 0
        # in a list, so that it is no submodule: neither trained nor saved
        self._reference = [policy.frozen()] if frozen else []

    def configure_model(self) -> None:
        """The reference is divided as the policy is."""
        super().configure_model()
        for frozen in self._reference:
            if self.device_mesh is not None and isinstance(frozen, Policy):
                shard(frozen, self.device_mesh["data_parallel"])

    @property
    def reference(self) -> Scorer | None:
        """The frozen policy, on the device of the trained one, or None."""
        if not self._reference:
            return None
        [frozen] = self._reference
        return frozen.to(self.device) if isinstance(frozen, Policy) else frozen

    def train_dataloader(self) -> DataLoader[Batch]:
        """Whole groups, collected when the epoch begins."""
        count = self.share.processes
        dataset = PhaseDataset(self._begin, self.collector.settings, count)
        return DataLoader(dataset, batch_size=None)

    def _begin(self) -> Phase:
        # as Lightning runs training steps: at θ = θ_old a ratio would else show the precision
        with self.trainer.precision_plugin.forward_context():
            self.last_phase = self.collector(self.policy, self.reference, self.phase, self.share)
        self.seconds["rollout"] += self.last_phase.rollout.sampling_s
        self.seconds["grading"] += self.last_phase.rollout.grading_s
        self._phase_begins = True
        self.rows = []
        return self.last_phase

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """Loss of a batch of whole groups; its metrics wait for the optimiser step."""
        if not self._parts:  # the first batch of an update
            self._began = time.perf_counter()
        algorithm = over_processes(self.collector.algorithm, self.share)
        output = algorithm.loss(self.policy, batch, self.collector.settings.rows)
        self._parts.append(dict(output.metrics))
        self.computed += self._quantities(batch, output)
        return output.loss

    def _quantities(self, batch: Batch, output: LossOutput) -> list[tuple[str, Tensor]]:
        assert self.last_phase is not None
        rollout = self.last_phase.rollout
        return [
            ("rollout log-likelihood", rollout.completions.log_probability),
            ("reward", rollout.reward[~rollout.reward.isnan()]),  # NaN is no verdict
            ("advantage", batch.advantage),
            ("old likelihood", batch.old.value),
            *([("reference likelihood", batch.reference.value)] if batch.reference else []),
            # of the new likelihood against the old one
            ("log-ratio", output.metrics["train/ratio/log_std"]),
            ("loss", output.loss.detach()),
        ]

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log the step: means over accumulated batches and processes (extrema of extrema)."""
        metrics = merge(processes.merged_rows(self._parts))
        self._parts = []
        phase = self.last_phase
        if phase is not None and self._phase_begins:
            self._phase_begins = False
            metrics |= {name: torch.tensor(value) for name, value in phase.metrics.items()}
            # θ = θ_old here: what the log-ratio shows is estimation noise alone
            metrics["train/ratio/noise_std"] = metrics["train/ratio/log_std"]
        metrics["phase"] = torch.tensor(float(self.phase))
        metrics["train/grad_spike"] = torch.tensor(self._spikes(float(self.gradient_norm())))
        # a number of the gradient has been read: what was queued on a GPU is done
        metrics["time/update_s"] = torch.tensor(time.perf_counter() - self._began)
        self.log_step(metrics, optimizer)
        self.rows.append(metrics)

    def on_train_epoch_end(self) -> None:
        """The next phase; before checkpoints are written, which callbacks do afterwards."""
        self.phase += 1

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The phase counter; everything random is keyed by it, so no generator state is needed."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["phase"] = self.phase
        checkpoint["gradient_norms"] = self._spikes.norms

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on at the phase after the checkpoint."""
        if "phase" not in checkpoint:
            raise UserError(
                "ckpt_path: this checkpoint is of another job; model.path takes its policy"
            )
        super().on_load_checkpoint(checkpoint)
        self.phase = checkpoint["phase"]
        self._spikes = Spikes(checkpoint.get("gradient_norms", ()))


def merge(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Metrics of accumulated batches as one: maxima for `…max`, counts added, means otherwise."""
    merged = {}
    for name in parts[0]:
        values = torch.stack([part[name] for part in parts])
        if name.endswith("max"):
            merged[name] = values.max()
        elif name.startswith("guard/"):
            merged[name] = values.sum()
        else:
            merged[name] = masked_mean(values, torch.ones_like(values, dtype=torch.bool))
    return merged
