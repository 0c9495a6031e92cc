"""Rules about models that write block by block, and what goes with them: as `stabledrl.rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stabledrl.settings import Settings, collects_phases, component, select, trains_on


def model_is_decodable(cfg: Settings) -> Iterator[str]:
    """A model may load without anybody sampling from it or scoring with it."""
    model, job = component(cfg, "model"), component(cfg, "job")
    if not getattr(model, "decodable", True) and getattr(job, "loads_model", True):
        yield (
            f"model._target_={select(cfg, 'model._target_')}: sampling from it or scoring with it "
            "is not supported yet: take another model (model=sdar_8b, llada_8b, …)"
        )


def sampler_and_attention_are_the_models(cfg: Settings) -> Iterator[str]:
    """They are for models that write block by block, or for others."""
    model, job = component(cfg, "model"), component(cfg, "job")
    if model is None or not getattr(job, "loads_model", True):
        return
    blocks = getattr(model, "block_causal", False)
    choices = {"attention": "staircase", "sampler": "block"}
    others = {"attention": "bidirectional", "sampler": "semi_autoregressive"}
    for group, choice in (choices if blocks else others).items():
        chosen = component(cfg, group)
        if chosen is not None and getattr(chosen, "of_blocks", False) != blocks:
            kind = "writes block by block" if blocks else "does not write block by block"
            yield (
                f"{group}={chosen.__name__} is not for model={select(cfg, 'model._target_')}, "
                f"which {kind}: take {group}={choice}"
            )


def estimator_hides_within_blocks(cfg: Settings) -> Iterator[str]:
    """A model that writes block by block knows what was before a block, the prompt above all."""
    model, job, estimator = (component(cfg, group) for group in ("model", "job", "estimator"))
    scores = collects_phases(cfg) or trains_on(cfg) or getattr(job, "scores_texts", False)
    if not (scores and estimator and getattr(model, "block_causal", False)):
        return
    name = f"model={select(cfg, 'model._target_')} writes block by block"
    if not getattr(estimator, "takes_blocks", False):
        yield (
            f"estimator={estimator.__name__} hides tokens of the whole completion, and {name}: "
            "take estimator=block_elbo, elbo, mean_field, trajectory or exact"
        )
    masking = component(cfg, "masking.pattern")
    if masking is not None and masking.__name__.lower() != "uniform":
        yield (
            f"masking.pattern={masking.__name__} hides tokens of the whole completion, and {name}: "
            "take masking=uniform"
        )
    share = select(cfg, "estimator.prompt_mask_probability")
    if share:
        yield (
            f"estimator.prompt_mask_probability={share}: {name} and reads the prompt as it is: "
            "set it to 0"
        )


def flex_attention_has_a_gradient(cfg: Settings) -> Iterator[str]:
    """PyTorch's flex_attention has a backward pass on GPUs alone."""
    on_cpu = select(cfg, "trainer.accelerator") == "cpu"
    if select(cfg, "attention.flex") and on_cpu and trains_on(cfg) is not None:
        yield (
            "attention.flex=true: flex_attention has no gradient on a CPU: take "
            "attention.flex=false or trainer=gpu"
        )


def blocks_are_learned(cfg: Settings) -> Iterator[str]:
    """Lengths of blocks mean something to models that have blocks."""
    lengths, model = select(cfg, "job.block_lengths"), component(cfg, "model")
    if lengths and model is not None and not getattr(model, "block_causal", False):
        yield (
            f"job.block_lengths={lengths}: model={select(cfg, 'model._target_')} does not write "
            "block by block: take model=tiny_block or job.block_lengths=null"
        )


BLOCK_RULES: tuple[Callable[[Settings], Iterator[str]], ...] = (
    model_is_decodable,
    sampler_and_attention_are_the_models,
    estimator_hides_within_blocks,
    flex_attention_has_a_gradient,
    blocks_are_learned,
)
