"""How a policy is judged while it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from stabledrl.policy import Policy
from stabledrl.randomness import keyed_generator
from stabledrl.rollout import Rollout, collect
from stabledrl.samplers.sampler import Sampler
from stabledrl.share import WHOLE, Share
from stabledrl.types import Prompt, Task


@dataclass(frozen=True)
class Validation:
    """How a policy is judged: greedy decoding of held-out prompts, graded by the task's verifier.

    rows: completions decoded together, by each process.
    """

    task: Task
    sampler: Sampler
    prompts: Sequence[Prompt]
    rows: int

    def loader(self, processes: int = 1) -> DataLoader[Any]:
        """The prompts in batches of `rows` for each process; every process gets whole batches."""
        size = self.rows * processes
        return DataLoader(self.prompts, batch_size=size, collate_fn=list)  # type: ignore[arg-type]

    def __call__(self, policy: Policy, prompts: Sequence[Prompt], share: Share = WHOLE) -> Rollout:
        """One graded greedy completion per prompt; each process makes its share of them."""
        generator = keyed_generator("validation")  # greedy: unused but by exotic confidences
        greedy, rows = self.sampler.greedy(), len(prompts)
        return collect(policy, greedy, self.task, prompts, 1, generator, rows, share)
