"""Facts that a function states about itself, for those who choose functions by configuration.

A fact is an attribute of the function, so that nobody has to know functions by name: the rules of
`stabledrl.rules` read them, and a function of your own may state them or leave them out. They are

    needs_whole_step   normalization, level of a divergence: a mean over the whole optimiser step
                       (False)
    clamps_exponent    normalization: weights go through `guarded_exp` (True)
    score_kind         normalization: the score ℓ it is made for; score function: the ℓ it gives;
                       "summed" over tokens or "per_token" (None: any)
    takes_threshold    confidence: in [0, 1] and larger for surer tokens (True)
    longest_completion estimator: tokens of the longest it can score (None: any)
    varying_forwards   estimator: makes as many forward passes as completions are long (False)
    shards             strategy of a trainer: divides the weights over processes (False)
    token_values       estimator: has a value for every token, unless it draws (False)
    needs_token_values level of a divergence, units of a ratio: works on them (False)
    replays_decoding   estimator: scores decoded completions only, not solutions (False)
    trains_on          job: "rollouts", "solutions" or None ("rollouts")
    scores_texts       job: scores completions that it is given as text (False)
    loads_model        job: builds the policy, to sample from it or to score with it (True)
    block_causal       loader of a model: its attention is block-causal (False)
    decodable          loader of a model: it can be sampled from and scored with (True)
    of_blocks          attention, sampler: of a model that writes block by block (False)
    takes_blocks       estimator: scores such a model (False)
    collects_phases    job: gathers rollout phases (where it trains on rollouts)
    needs_training     adapter: does nothing to a model before it is trained (False)
    metrics            job: what `optimized_metric` may name (None: not checked)

with what is taken for granted where nothing is stated in parentheses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def declares(**facts: object) -> Callable[[Function], Function]:
    """Decorator that states facts about a function: each becomes an attribute of it."""

    def state(function: Function) -> Function:
        for name, fact in facts.items():
            setattr(function, name, fact)
        return function

    return state


def stated(function: object, fact: str, otherwise: Any) -> Any:
    """What a function states, or one that a configured partial calls."""
    return getattr(getattr(function, "func", function), fact, otherwise)
