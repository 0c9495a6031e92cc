"""A policy and how long its prompts may be, as configured: shared by the jobs that need one."""

from __future__ import annotations

from omegaconf import DictConfig

from stabledrl.config import build
from stabledrl.policy import Policy
from stabledrl.prompts import PromptLimit


def build_policy(cfg: DictConfig) -> Policy:
    """The model with its attention and adapter, its layers set to be run as acceleration says.

    The model comes last: what is wrong with the others is told before weights are read.
    """
    attention = build(cfg.attention)
    adapter, acceleration = build(cfg.adapter), build(cfg.acceleration)
    policy: Policy = acceleration(adapter(build(cfg.model).look(attention)))
    return policy


def prompt_limit(cfg: DictConfig, completion_length: int | None = None) -> PromptLimit:
    """How long a prompt may be, where completions have sampler.length tokens or those given."""
    length = cfg.sampler.length if completion_length is None else completion_length
    return PromptLimit(cfg.rollout.get("max_prompt_length"), length)
