"""Rules between the switches of the objective: what each refuses, in which words."""

import pytest

from stabledrl.config import validate
from stabledrl.errors import ConfigurationError
from tests.jobs.test_conf import composed
from tests.test_rules import FAKE, FUNCTIONS, told

BRING_THEIR_OWN_MASKS = [
    "coupled.Coupled",
    "coupled_token.CoupledToken",
    "exact.Exact",
    "mean_field.MeanField",
    "quadrature.Quadrature",
    "stratified.Stratified",
    "trajectory.Trajectory",
]


@pytest.mark.parametrize("name", [*BRING_THEIR_OWN_MASKS, "elbo.Elbo", "sandwich.Sandwich"])
def test_block_random_is_for_elbo_and_sandwich(name):
    lines = told(
        {
            "masking.pattern._target_": f"{FUNCTIONS}.masking.block_random",
            "estimator._target_": f"stabledrl.estimators.{name}",
        }
    )
    assert len(lines) == (name in BRING_THEIR_OWN_MASKS)
    assert all("block_random" in line and name in line for line in lines)


# By hand, for a completion of n tokens: ℓ is Σ log p at ratio=sequence and Σ log p / n at
# per_token. The published losses are means over tokens, c·ℓ ∝ (Σ log p)/n, or sums over them:
# sequence_token_mean  Z = G·n            c·ℓ ∝ ℓ/n    needs Σ log p      (GRPO)
# fixed_length         Z = G·R            c·ℓ ∝ ℓ/R    needs Σ log p      (Dr.GRPO)
# token                Z = Σ_j n_j        c·ℓ ∝ ℓ/Σn   needs Σ log p      (DAPO, d1)
# length_weighted      Z = Σ_j n_j / n    c·ℓ ∝ ℓ·n/Σn needs Σ log p / n  (SPG)
SUMMED = ("sequence_token_mean", "fixed_length", "token")
ANY = ("group", "self_normalized", "batch_self", "unnormalized")


@pytest.mark.parametrize("level", ["sequence", "per_token", "token"])
@pytest.mark.parametrize("name", [*SUMMED, *ANY, "length_weighted"])
def test_a_normalization_goes_with_the_score_of_its_formula(name, level):
    lines = told(
        {
            "normalization._target_": f"{FUNCTIONS}.normalization.{name}",
            "ratio.score._target_": f"{FUNCTIONS}.ratio.{level}_score",
        }
    )
    if name in SUMMED and level == "per_token":
        assert lines == [
            f"normalization={name} is for scores summed over tokens, ratio.score=per_token_score "
            "gives scores per token: take ratio=sequence or normalization=group"
        ]
    elif name == "length_weighted" and level != "per_token":
        assert lines == [
            f"normalization=length_weighted is for scores per token, ratio.score={level}_score "
            "gives scores summed over tokens: take ratio=per_token or normalization=group"
        ]
    else:
        assert lines == []


def test_enumeration_refuses_long_completions():
    exact = {"estimator._target_": "stabledrl.estimators.exact.Exact"}
    assert told(exact | {"sampler.length": 16}) == []
    assert told(exact | {"sampler.length": 17}) == [
        "sampler.length=17 is too long for estimator=Exact, which takes at most 16 tokens: "
        "shorten it or take another estimator"
    ]


def test_solutions_have_no_decoding_to_replay():
    trajectory = {"estimator._target_": "stabledrl.estimators.trajectory.Trajectory"}
    assert told(trajectory | {"job._target_": "stabledrl.jobs.train.train"}) == []
    assert told(trajectory | {"job._target_": "stabledrl.jobs.pretrain.pretrain"}) == [
        "estimator=Trajectory replays a decoding, and job=pretrain trains on solutions: take "
        "another estimator"
    ]
    assert told(trajectory | {"job._target_": "stabledrl.jobs.score.score"}) == [
        "estimator=Trajectory replays a decoding, and job=score scores texts: take another "
        "estimator"
    ]
    assert told(trajectory | {"job._target_": "stabledrl.jobs.generate.generate"}) == []


def test_a_divergence_per_token_needs_token_values():
    level = {"kl.level._target_": "stabledrl.penalty.token", "kl.coefficient": 0.1}
    estimator = "stabledrl.estimators."
    elbo = {"estimator._target_": f"{estimator}elbo.Elbo"}
    trajectory = {"estimator._target_": f"{estimator}trajectory.Trajectory"}
    for settings, name in ((elbo, "Elbo"), (trajectory | {"estimator.draws": 2}, "Trajectory")):
        assert told(level | settings) == [
            f"kl.level=token needs an estimator with token values, estimator={name} as configured "
            "has none: take kl=k3 or kl=none"
        ]
    assert told(level | trajectory) == []
    assert told(level | {"estimator._target_": f"{estimator}mean_field.MeanField"}) == []
    assert told(level | elbo | {"kl.coefficient": 0.0}) == []
    for job in ("score", "pretrain"):  # which have no divergence
        target = {"job._target_": f"stabledrl.jobs.{job}.{job}"}
        assert told(level | elbo | target) == []


@pytest.mark.parametrize(
    ("refused", "remedy"),
    [
        (["algorithm=diffu_grpo", "estimator=elbo"], ["ratio=per_token", "kl=k3"]),
        (["algorithm=spg", "estimator=mean_field"], ["masking=uniform"]),
    ],
)
def test_what_a_refusal_tells_to_take_is_accepted(refused, remedy):
    with pytest.raises(ConfigurationError) as caught:
        validate(composed(*refused))
    assert all(f"take {word}" in str(caught.value) for word in remedy)
    # d1's normalization goes with ratios of tokens
    normalization = ["normalization=group"] * ("ratio=per_token" in remedy)
    validate(composed(*refused, *remedy, *normalization))


def test_a_ratio_of_tokens_needs_token_values():
    units = {"ratio.units._target_": "stabledrl.levels.tokens"}
    estimator = "stabledrl.estimators."
    elbo = {"estimator._target_": f"{estimator}elbo.Elbo"}
    trajectory = {"estimator._target_": f"{estimator}trajectory.Trajectory"}
    for settings, name in ((elbo, "Elbo"), (trajectory | {"estimator.draws": 2}, "Trajectory")):
        for job in ("train", "probe"):
            target = {"job._target_": f"stabledrl.jobs.{job}.{job}"}
            assert told(units | settings | target) == [
                "ratio.units=tokens needs an estimator with token values, "
                f"estimator={name} as configured has none: take ratio=per_token"
            ]
    assert told(units | trajectory) == []
    for path in ("mean_field.MeanField", "coupled_token.CoupledToken"):
        assert told(units | {"estimator._target_": estimator + path}) == []
    assert told(elbo | {"ratio.units._target_": "stabledrl.levels.completions"}) == []
    assert told(units | elbo | {"job._target_": "stabledrl.jobs.evaluate.evaluate"}) == []


@pytest.mark.parametrize("name", ["coupled.Coupled", "quadrature.Quadrature"])
def test_estimators_with_masks_of_their_own_take_uniform_masking_only(name):
    estimator = {"estimator._target_": f"stabledrl.estimators.{name}"}
    assert told(estimator | {"masking.pattern._target_": f"{FUNCTIONS}.masking.uniform"}) == []
    (line,) = told(estimator | {"masking.pattern._target_": f"{FAKE}.BlockRandom"})
    assert "which brings its own masks" in line
