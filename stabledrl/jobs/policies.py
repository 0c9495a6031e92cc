"""From the groups model, adapter and acceleration to a policy: shared by the jobs that need one."""

from __future__ import annotations

from omegaconf import DictConfig

from stabledrl.config import build
from stabledrl.policy import Policy


def build_policy(cfg: DictConfig) -> Policy:
    """The model with its adapter, its layers set to be run as acceleration says.

    The adapter and the acceleration are looked at first: what is wrong with them is told before
    weights are read.
    """
    adapter, acceleration = build(cfg.adapter), build(cfg.acceleration)
    policy: Policy = acceleration(adapter(build(cfg.model)))
    return policy
