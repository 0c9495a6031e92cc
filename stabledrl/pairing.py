"""Which corruption scores the old policy, and which each inner update.

The choice that matters most: it decides how much of a log-ratio is noise.

Every function takes `draw(label)`, which returns the phase's corruption with that label (the same
label, the same draw), and the number of inner updates μ; it returns one (old, update) pair per
update. At unchanged weights `paired` and `shared` give ρ = 1 exactly; under `independent` the
log-ratio is then pure estimation noise.
"""

from __future__ import annotations

from collections.abc import Callable

from stabledrl.types import Corruption

Draw = Callable[[str], Corruption]
Pairs = list[tuple[Corruption, Corruption]]


def independent(draw: Draw, updates: int) -> Pairs:
    """The old policy is scored once on its own draw, every update draws anew (as StableDRL)."""
    old = draw("old")
    return [(old, draw(f"update {update}")) for update in range(updates)]


def paired(draw: Draw, updates: int) -> Pairs:
    """Every update has its own draw and the old policy is scored on the same one (d1, ESPO)."""
    drawn = [draw(f"update {update}") for update in range(updates)]
    return list(zip(drawn, drawn, strict=True))


def shared(draw: Draw, updates: int) -> Pairs:
    """One draw for the old policy and all updates."""
    drawn = draw("update 0")
    return [(drawn, drawn)] * updates
