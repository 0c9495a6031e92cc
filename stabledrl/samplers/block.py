"""Block diffusion: blocks from left to right, denoised in any order inside, what is done is cached.

SDAR (arXiv 2510.06303), BD3-LM (arXiv 2503.09573).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Lt
from jaxtyping import Bool, Float, Int
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as configured
from torch import Tensor

from stabledrl.errors import UserError
from stabledrl.functional.decoding import commit_mask, token_probability, transfer_quota
from stabledrl.policy import Policy
from stabledrl.samplers.block_reader import BlockReader
from stabledrl.samplers.proposal import Confidence, Schedule, propose
from stabledrl.types import Completions


@configured(frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
class BlockDiffusion:
    """Fully masked completion -> text, `steps` passes, each over the tokens of one block.

    Keys and values of the prompt and of finished blocks are kept, so a pass reads a block, not the
    text; the first pass of a block reads the finished one before it as well. The grid of blocks is
    the attention's (`Policy.blocks`): where the end of a prompt shares its block with the first new
    tokens, that block has fewer to find, and a completion touches one block more.

    length: completion tokens. block_length: the model's, divides length. steps: passes over
    length / block_length blocks; a multiple of their number. temperature, confidence, threshold,
    schedule: as for `SemiAutoregressive`; a pass never commits more than is masked.
    """

    of_blocks: ClassVar[bool] = True

    length: Annotated[int, Gt(0)]
    block_length: Annotated[int, Gt(0)]
    steps: Annotated[int, Gt(0)]
    temperature: Annotated[float, Ge(0)] = 0.9
    confidence: Confidence = token_probability
    threshold: Annotated[float, Gt(0), Lt(1)] | None = None
    schedule: Schedule = transfer_quota

    def __post_init__(self) -> None:
        if self.length % self.block_length:
            raise ValueError(
                f"sampler.block_length={self.block_length} does not divide "
                f"sampler.length={self.length}"
            )
        if self.steps % (self.length // self.block_length) or self.steps > self.length:
            raise ValueError(
                f"sampler.steps={self.steps} must be a multiple of the "
                f"{self.length // self.block_length} blocks and at most "
                f"sampler.length={self.length}"
            )

    @property
    def passes(self) -> int:
        """Passes over a block."""
        return self.steps * self.block_length // self.length

    @property
    def most_passes(self) -> int:
        """Passes over a completion that touches one block more."""
        return self.steps + self.passes

    def greedy(self) -> BlockDiffusion:
        """The same decoder at temperature 0: what evaluation uses."""
        return replace(self, temperature=0.0)

    def draw(
        self, samples: int, generator: torch.Generator
    ) -> Float[Tensor, "sample step two position"]:
        """All the randomness of `samples` completions, in sample order: slice it with the samples.

        One uniform number per sample, pass and block position for the token, one for the order.
        """
        shape = (samples, self.most_passes, 2, self.block_length)
        return torch.rand(shape, generator=generator)

    @torch.no_grad()
    def __call__(
        self,
        policy: Policy,
        prompt_ids: Int[Tensor, "sample prompt_position"],
        prompt_mask: Bool[Tensor, "sample prompt_position"],
        uniform: Float[Tensor, "sample step two position"],
    ) -> Completions:
        """Complete left-padded prompts. Rows whose finished block holds an end token drop out.

        Raises UserError for a model without blocks, with other ones, or with shifted logits.
        """
        self._require(policy)
        facts = policy.facts
        completion = (len(prompt_ids), self.length)
        ids = torch.cat([prompt_ids, prompt_ids.new_full(completion, facts.mask_token_id)], dim=1)
        step = ids.new_full(completion, self.most_passes)
        log_probability = torch.zeros(completion, device=ids.device)
        reader = BlockReader(policy, ids, prompt_mask, self.block_length)
        uniform = uniform.to(ids.device)
        quota = self.schedule(self.block_length, self.passes)
        for block in range(reader.blocks):
            for index in range(self.passes):
                masked = reader.masked(block)
                if not masked.any():  # a threshold may have finished the block early
                    break
                if not quota[index] and self.threshold is None:
                    continue
                rows, number = reader.rows, block * self.passes + index
                token, confidence, log_token = propose(
                    reader.logits(block, masked).float(),
                    masked,
                    uniform[rows, number],
                    self.temperature,
                    self.confidence,
                    facts.mask_token_id,
                )
                commit = commit_mask(confidence, masked, quota[index], self.threshold)
                row, slot = commit.nonzero(as_tuple=True)
                column = reader.columns(block)[row, slot]
                ids[rows[row], column] = token[commit]
                place = (rows[row], column - prompt_ids.shape[1])
                step[place] = number
                log_probability[place] = log_token[commit]
            reader.finish(block)
            if not len(reader.rows):
                break
        found = ids[:, prompt_ids.shape[1] :]
        unwritten = step == self.most_passes
        return Completions(
            found.masked_fill(unwritten, facts.pad_token_id),
            step,
            log_probability,
            reader.rows_read / len(ids),
        )

    def _require(self, policy: Policy) -> None:
        facts = policy.facts
        if not facts.block_length:
            raise UserError(
                "sampler=block: the model does not write block by block, take "
                "sampler=semi_autoregressive"
            )
        if facts.block_length != self.block_length:
            raise UserError(
                f"sampler.block_length={self.block_length}, but the model has blocks of "
                f"{facts.block_length}: set sampler.block_length={facts.block_length}"
            )
        if facts.shift_logits:
            raise UserError("sampler=block: a model with shifted logits is not supported")
