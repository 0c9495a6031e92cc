"""LLaDA's semi-autoregressive decoding: blocks from left to right, denoised in any order inside."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from jaxtyping import Bool, Float, Int
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from stabledrl.errors import UserError
from stabledrl.functional.decoding import commit_mask, token_probability, transfer_quota
from stabledrl.policy import Policy
from stabledrl.samplers.proposal import Confidence, Schedule, propose
from stabledrl.types import Completions

END_PENALTY = 1e4  # below any confidence, and the order among end tokens is kept


@dataclass(frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
class SemiAutoregressive:
    """Fully masked completion -> text, `steps` forward passes, `length / block_length` blocks.

    Method: LLaDA (arXiv 2502.09992), algorithm 5 with block_length < length.

    length: completion tokens. block_length: tokens denoised together; divides length.
    steps: forward passes over the whole completion; a multiple of the number of blocks.
    temperature: of the sampled token; 0 is greedy. Confidence never sees it.
    confidence: scores (logits, token, uniform) -> how sure; the surest are committed first.
    threshold: commit every token surer than this, beyond the quota; None keeps the quota.
    guidance_scale: classifier-free guidance, logits = unconditional + (scale+1)·(conditional -
    unconditional), unconditional = the prompt fully masked; 0 is off and costs nothing.
    suppress_end: commit end tokens only after every other proposal of the block.
    schedule: (tokens of a block, its passes) -> how many each pass commits. Dream's decoding is one
    block with `linear_time_quota`; a pass that commits nothing is not made.
    """

    length: Annotated[int, Gt(0)]
    block_length: Annotated[int, Gt(0)]
    steps: Annotated[int, Gt(0)]
    temperature: Annotated[float, Ge(0)] = 0.9
    confidence: Confidence = token_probability
    threshold: Annotated[float, Gt(0), Lt(1)] | None = None
    guidance_scale: Annotated[float, Ge(0)] = 0.0
    suppress_end: bool = False
    schedule: Schedule = transfer_quota

    def __post_init__(self) -> None:
        if self.length % self.block_length:
            raise ValueError(
                f"sampler.block_length={self.block_length} does not divide "
                f"sampler.length={self.length}"
            )
        if self.steps % self.blocks or self.steps > self.length:
            raise ValueError(
                f"sampler.steps={self.steps} must be a multiple of the {self.blocks} blocks "
                f"and at most sampler.length={self.length}"
            )

    @property
    def blocks(self) -> int:
        """Number of blocks in a completion."""
        return self.length // self.block_length

    def greedy(self) -> SemiAutoregressive:
        """The same decoder at temperature 0: what evaluation uses."""
        return replace(self, temperature=0.0)

    def draw(
        self, samples: int, generator: torch.Generator
    ) -> Float[Tensor, "sample step two position"]:
        """All the randomness of `samples` completions, in sample order: slice it with the samples.

        One uniform number per sample, pass and block position for the token, one for the order.
        """
        return torch.rand((samples, self.steps, 2, self.block_length), generator=generator)

    @torch.no_grad()
    def __call__(
        self,
        policy: Policy,
        prompt_ids: Int[Tensor, "sample prompt_position"],
        prompt_mask: Bool[Tensor, "sample prompt_position"],
        uniform: Float[Tensor, "sample step two position"],
    ) -> Completions:
        """Complete left-padded prompts. Rows whose finished blocks hold an end token drop out.

        Raises UserError for a block-causal model, which is decoded another way.
        """
        facts = policy.facts
        if facts.block_length:
            raise UserError(
                f"the model is block-causal (blocks of {facts.block_length}): take sampler=block"
            )
        uniform = uniform.to(prompt_ids.device)
        ids = prompt_ids.new_full((len(prompt_ids), self.length), facts.mask_token_id)
        step = torch.full_like(ids, self.steps)
        log_probability = torch.zeros(ids.shape, device=ids.device)
        alive = torch.arange(len(ids), device=ids.device)
        passes = self.steps // self.blocks
        quota = self.schedule(self.block_length, passes)
        rows_scored = 0
        for index in range(self.steps):
            block = index // passes
            columns = slice(block * self.block_length, (block + 1) * self.block_length)
            # a threshold may have finished some rows of the block early: they cost nothing
            rows = alive[(ids[alive, columns] == facts.mask_token_id).any(-1)]
            due = quota[index % passes]
            if len(rows) and (due or self.threshold is not None):
                masked = ids[rows, columns] == facts.mask_token_id
                rows_scored += len(rows)
                token, confidence, log_token = self._propose(
                    policy,
                    torch.cat([prompt_ids[rows], ids[rows]], dim=1),
                    prompt_mask[rows],
                    masked,
                    columns,
                    uniform[rows, index],
                )
                commit = commit_mask(confidence, masked, due, self.threshold)
                row, offset = commit.nonzero(as_tuple=True)
                place = (rows[row], offset + columns.start)
                ids[place] = token[commit]
                step[place] = index
                log_probability[place] = log_token[commit]
            if index % passes == passes - 1:  # the block is finished
                ends = torch.isin(ids[alive, columns], ids.new_tensor(facts.end_token_ids))
                ended = ends.any(-1)
                ids[alive[ended], columns.stop :] = facts.pad_token_id
                alive = alive[~ended]
        forwards = rows_scored * (2 if self.guidance_scale else 1) / len(ids)
        return Completions(ids, step, log_probability, forwards)

    def _propose(
        self,
        policy: Policy,
        input_ids: Tensor,
        prompt_mask: Tensor,
        masked: Tensor,
        columns: slice,
        uniform: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Token, confidence and log-probability at every masked position of the block."""
        prompt_length = prompt_mask.shape[1]
        token_mask = torch.ones_like(input_ids, dtype=torch.bool)
        token_mask[:, :prompt_length] = prompt_mask
        selection = torch.zeros_like(token_mask)
        selection[:, prompt_length + columns.start : prompt_length + columns.stop] = masked
        logits = policy(input_ids, token_mask, selection).float()
        if self.guidance_scale:
            hidden = input_ids.clone()
            hidden[:, :prompt_length] = policy.facts.mask_token_id
            unconditional = policy(hidden, token_mask, selection).float()
            logits = unconditional + (self.guidance_scale + 1) * (logits - unconditional)
        token, confidence, log_token = propose(
            logits,
            masked,
            uniform,
            self.temperature,
            self.confidence,
            policy.facts.mask_token_id,
        )
        if self.suppress_end:
            ends = torch.isin(token, token.new_tensor(policy.facts.end_token_ids))
            confidence = confidence - END_PENALTY * ends
        return token, confidence, log_token
