"""Block diffusion: a block is denoised behind finished ones, whose keys and values are kept."""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Lt
from jaxtyping import Bool, Float, Int
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import pad

from stabledrl.errors import UserError
from stabledrl.functional.attention import positions
from stabledrl.functional.decoding import commit_mask, token_probability, transfer_quota
from stabledrl.policy import Policy
from stabledrl.samplers.clean_text import Chosen, Layout, Reader
from stabledrl.samplers.proposal import Confidence, Schedule, propose
from stabledrl.types import Completions


@dataclass(frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
class BlockDiffusion:
    """Fully masked blocks -> text, one after the other, in the grid in which the policy scores.

    Method: SDAR (arXiv 2510.06303), TraceRL (arXiv 2509.06949). The grid is that of
    `Policy.blocks`: with origin=absolute the end of the prompt may share a block with the first new
    tokens, and the last block of a completion is then shorter. A pass reads the block alone, the
    text before it from a cache; prompt and finished blocks enter it with the first pass of the next
    block, so that they cost no pass of their own.

    length: completion tokens. block_length: of the model; divides length.
    steps: forward passes over a whole completion of whole blocks; a multiple of their number. A
    block that has fewer tokens to write is finished after fewer passes.
    temperature: of the sampled token; 0 is greedy. Confidence never sees it.
    confidence: scores (logits, token, uniform) -> how sure; the surest are committed first.
    threshold: commit every token surer than this, at least the quota; None keeps the quota.
    schedule: (tokens of a block, its passes) -> how many each pass commits.
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
        blocks = self.length // self.block_length
        if self.steps % blocks or self.steps > self.length:
            raise ValueError(
                f"sampler.steps={self.steps} must be a multiple of the {blocks} blocks "
                f"and at most sampler.length={self.length}"
            )

    @property
    def passes(self) -> int:
        """Passes over a block, at most."""
        return self.steps * self.block_length // self.length

    def greedy(self) -> BlockDiffusion:
        """The same decoder at temperature 0: what evaluation uses."""
        return replace(self, temperature=0.0)

    def draw(
        self, samples: int, generator: torch.Generator
    ) -> Float[Tensor, "sample pass two completion_position"]:
        """All the randomness of `samples` completions, in sample order: slice it with the samples.

        One uniform number per sample, pass over a block and token for the token, one for the order.
        """
        return torch.rand((samples, self.passes, 2, self.length), generator=generator)

    @torch.no_grad()
    def __call__(
        self,
        policy: Policy,
        prompt_ids: Int[Tensor, "sample prompt_position"],
        prompt_mask: Bool[Tensor, "sample prompt_position"],
        uniform: Float[Tensor, "sample pass two completion_position"],
    ) -> Completions:
        """Complete left-padded prompts. Rows whose finished block holds an end token drop out.

        Every row has its j-th block at the same time, wherever that is. UserError for a model that
        has no blocks, has others, or predicts the token behind the one it reads.
        """
        uniform = uniform.to(prompt_ids.device)
        draft, reader = self._begin(policy, prompt_ids, prompt_mask)
        layout = reader.layout
        # counted from the block of the first new token
        number = layout.block - layout.block[:, prompt_ids.shape[1]][:, None]
        quota = self.schedule(self.block_length, self.passes)
        for current in range(int(number[:, -1].max()) + 1):
            wanted = (number == current) & layout.real
            block = first_columns(wanted[reader.rows], self.block_length)
            self._write(reader, draft, block, uniform, quota)
            ended = draft.holds(reader.rows, block, policy.facts.end_token_ids)
            draft.close(reader.rows[ended], block[ended], policy.facts.pad_token_id)
            reader.turn(block, draft.masked(reader.rows).any(-1))
            if not len(reader.rows):
                break
        return draft.completions()

    def _begin(
        self, policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor
    ) -> tuple[Draft, Reader]:
        """An empty draft, and a reader that has read nothing."""
        facts = policy.facts
        number = policy.blocks(prompt_mask, self.length)
        if not facts.block_length or number is None:
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
        ids = pad(prompt_ids, (0, self.length), value=facts.mask_token_id)
        real = pad(prompt_mask, (0, self.length), value=True)
        width = prompt_ids.shape[1]
        column = torch.arange(width, device=ids.device).expand(len(ids), -1)
        # the end of a prompt that shares a block with new tokens is read with these
        before = prompt_mask & (number[:, :width] < number[:, width:][:, :1])
        prompt = Chosen(column, before)
        draft = Draft(
            ids,
            torch.full_like(ids, -1),
            torch.zeros(ids.shape, device=ids.device),
            torch.zeros_like(ids[:, 0]),
            width,
            facts.mask_token_id,
        )
        layout = Layout(real, positions(real), number)
        rows = torch.arange(len(ids), device=ids.device)
        return draft, Reader(policy, layout, rows, prompt, Chosen(column[:, :0], before[:, :0]))

    def _write(
        self, reader: Reader, draft: Draft, block: Chosen, uniform: Tensor, quota: list[int]
    ) -> None:
        """Denoise a block of every row; one that is finished early costs nothing more."""
        for index, due in enumerate(quota):
            masked = draft.masked(reader.rows).gather(1, block.column) & block.real
            chosen = masked.any(-1).nonzero()[:, 0]
            if not len(chosen):
                return
            if not due and self.threshold is None:
                continue
            logits = reader.logits(draft.ids, block, masked, chosen)
            rows, column, masked = reader.rows[chosen], block.column[chosen], masked[chosen]
            place = (column - draft.prompt_length).clamp(min=0)
            numbers = uniform[rows, index].gather(2, place[:, None].expand(-1, 2, -1))
            facts = reader.policy.facts
            token, confidence, log_token = propose(
                logits.float(),
                masked,
                numbers,
                self.temperature,
                self.confidence,
                facts.mask_token_id,
            )
            commit = commit_mask(confidence, masked, due, self.threshold)
            row, offset = commit.nonzero(as_tuple=True)
            where = (rows[row], column[row, offset])
            draft.commit(where, token[commit], log_token[commit])
            draft.passes[rows] += 1


@plain_dataclass(frozen=True)
class Draft:
    """The texts of a batch while they are written: the tensors change.

    step, log_probability: as in `Completions`, of the whole text; step -1 where nothing is decided.
    passes: over each text so far.
    """

    ids: Int[Tensor, "sample column"]
    step: Int[Tensor, "sample column"]
    log_probability: Float[Tensor, "sample column"]
    passes: Int[Tensor, " sample"]
    prompt_length: int
    mask_token_id: int

    def masked(self, rows: Tensor) -> Bool[Tensor, "row column"]:
        """Columns of the completions that are still to be written."""
        masked = self.ids[rows] == self.mask_token_id
        masked[:, : self.prompt_length] = False
        return masked

    def holds(self, rows: Tensor, block: Chosen, tokens: tuple[int, ...]) -> Bool[Tensor, " row"]:
        """Whether what was written in a block has one of the tokens."""
        own = block.real & (block.column >= self.prompt_length)
        ids = self.ids[rows[:, None], block.column]
        return (torch.isin(ids, ids.new_tensor(tokens)) & own).any(-1)

    def commit(self, where: tuple[Tensor, Tensor], token: Tensor, log_probability: Tensor) -> None:
        """Decide tokens in the present pass over their texts."""
        self.ids[where] = token
        self.step[where] = self.passes[where[0]]
        self.log_probability[where] = log_probability

    def close(self, rows: Tensor, block: Chosen, pad_token_id: int) -> None:
        """End texts with a block: padding follows."""
        last = block.column.masked_fill(~block.real, -1).amax(-1, keepdim=True)
        column = torch.arange(self.ids.shape[1], device=rows.device)
        self.ids[rows] = self.ids[rows].masked_fill(column > last, pad_token_id)

    def completions(self) -> Completions:
        """The finished texts."""
        step = torch.where(self.step < 0, self.passes[:, None], self.step)
        return Completions(
            self.ids[:, self.prompt_length :],
            step[:, self.prompt_length :],
            self.log_probability[:, self.prompt_length :],
            float(self.passes.double().mean()),
        )


def first_columns(wanted: Bool[Tensor, "row column"], count: int) -> Chosen:
    """The first `count` wanted columns of every row, from left to right; others fill up."""
    column = (~wanted).int().argsort(dim=-1, stable=True)[:, :count]
    return Chosen(column, wanted.gather(1, column))
