"""Target-aware estimation: every normalising constant on its own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from estimand.density import Density
from estimand.estimators.protocol import Estimator, remembered
from estimand.methods.protocol import (
    LOG_MAX,
    LOG_MIN,
    Figures,
    Run,
    below_the_smallest_number,
    worst,
)
from estimand.trust.evidence import Evidence
from estimand.trust.status import Status


class _Skip:
    def __repr__(self) -> str:
        return "SKIP"


SKIP = _Skip()


@dataclasses.dataclass(frozen=True, repr=False)
class TABI:
    """Target-aware estimation: E[f] = (Z1⁺ − Z1⁻) / Z2, each Z estimated on its own.

    A part that the return expression itself rules out, such as the negative one of ``x**2``, is
    not estimated.

    Args:
        estimator: for all three, where no other one is named.
        normaliser: the estimator of Z2.
        positive: the estimator of Z1⁺, or `SKIP` if f ≤ 0.
        negative: the estimator of Z1⁻, or `SKIP` if f ≥ 0.

    Examples:
        >>> method = ep.TABI(ep.AnIS(num_samples=1000, num_temperatures=20))
        >>> result = ep.estimate_expectation(program(2.0), method)
        >>> abs(result.value - 2.5) < 4 * result.standard_error
        True
        >>> prior = ep.ImportanceSampling()
        >>> ep.TABI(ep.AnIS(), normaliser=prior)  # of any kinds mixed
        TABI(normaliser=ImportanceSampling(), positive=AnIS(), negative=AnIS())
    """

    estimator: dataclasses.InitVar[Estimator | None] = None
    _: dataclasses.KW_ONLY
    normaliser: Estimator | None = None
    positive: Estimator | _Skip | None = None
    negative: Estimator | _Skip | None = None

    def __post_init__(self, estimator: Estimator | None) -> None:
        if isinstance(estimator, _Skip) or isinstance(self.normaliser, _Skip):
            raise ValueError("TABI: Z2 cannot be skipped; it is what the result is divided by.")
        for name in ("normaliser", "positive", "negative"):
            if getattr(self, name) is None:
                if estimator is None:
                    raise ValueError(
                        f"TABI: no estimator for {name}. Give one estimator for all parts, as in "
                        "TABI(AnIS()), or normaliser=, positive= and negative=."
                    )
                object.__setattr__(self, name, estimator)
            chosen = getattr(self, name)
            if not (isinstance(chosen, _Skip) or hasattr(chosen, "estimate")):
                raise TypeError(f"TABI: {name} must be an estimator or SKIP; it is {chosen!r}.")
        if isinstance(self.positive, _Skip) and isinstance(self.negative, _Skip):
            raise ValueError("TABI: with both parts skipped nothing is left to estimate.")

    def __repr__(self) -> str:
        if self.normaliser == self.positive == self.negative:
            return f"TABI({self.normaliser!r})"
        return (
            f"TABI(normaliser={self.normaliser!r}, positive={self.positive!r}, "
            f"negative={self.negative!r})"
        )

    def _estimators(self) -> dict[str, Any]:
        return {"gamma1_plus": self.positive, "gamma1_minus": self.negative}

    def check(self, density: Density) -> None:
        for estimator in (self.normaliser, self.positive, self.negative):
            if not isinstance(estimator, _Skip):
                assert estimator is not None
                estimator.check(density)

    def run(
        self, rng_key: jax.Array, density: Density, outputs: Sequence[int] | None = None
    ) -> Run:
        """Figures of all outputs, or of some of them."""
        assert self.normaliser is not None
        outputs = range(density.num_outputs) if outputs is None else outputs
        known = density.known_signs
        keys = jax.random.split(rng_key, 1 + 2 * density.num_outputs)
        z2 = remembered(self.normaliser, keys[0], density.part("gamma2"))
        evidence, figures = [("gamma2", z2)], []
        for output in outputs:
            parts: dict[str, Evidence | None] = {}
            for number, (name, estimator) in enumerate(self._estimators().items()):
                is_absent = known[output] == (-1, 1)[number]
                if isinstance(estimator, _Skip) or is_absent:
                    parts[name] = None
                    continue
                key = keys[1 + 2 * output + number]
                parts[name] = remembered(estimator, key, density.part(name, output))
                evidence.append((name, parts[name]))  # type: ignore[arg-type]
            figures.append(combine(parts["gamma1_plus"], parts["gamma1_minus"], z2))
        evidence = jax.block_until_ready(evidence)
        return Run(
            figures=tuple(figures),
            num_evaluations=sum(item.num_evaluations for _, item in evidence),
            num_gradients=sum(item.num_gradients for _, item in evidence),
            ess_z2=z2.ess,
            log_z2=float(z2.log_z),
            evidence=tuple(evidence),
        )


def combine(plus: Evidence | None, minus: Evidence | None, z2: Evidence) -> Figures:
    """(Z1⁺ − Z1⁻) / Z2 from independent parts, with its standard error and status."""
    parts = [part for part in (plus, minus) if part is not None]
    with_mass = [part for part in parts if np.isfinite(part.log_z)]
    log_plus = -math.inf if plus is None else float(plus.log_z)
    log_minus = -math.inf if minus is None else float(minus.log_z)
    figures = Figures(
        value=0.0,
        standard_error=math.inf,
        status=Status.no_mass_found,
        ess_z1=min((part.ess for part in with_mass), default=0.0),
        log_z1_plus=log_plus,
        log_z1_minus=log_minus,
        ess_z1_plus=math.nan if plus is None else plus.ess,
        ess_z1_minus=math.nan if minus is None else minus.ess,
    )
    if any(part.num_invalid for part in (*parts, z2)):
        figures = figures._replace(status=Status.nan_density)
    if not with_mass or not np.isfinite(z2.log_z):
        return figures

    # Relative to the larger part, so that no scale of f overflows.
    log_scale = max(log_plus, log_minus)
    if log_scale - float(z2.log_z) < LOG_MIN:
        return below_the_smallest_number(log_plus, log_minus)
    sizes = [math.exp(float(part.log_z) - log_scale) for part in with_mass]
    relative = math.exp(log_plus - log_scale) - math.exp(log_minus - log_scale)
    # What each part adds to the variance, and the degrees of freedom of its error.
    pieces = [
        (size**2 * variance if math.isfinite(variance) else math.inf, float(part.degrees))
        for size, part in zip((relative, *sizes), (z2, *with_mass), strict=True)
        for variance in (float(part.relative_variance),)
    ]
    error = math.sqrt(sum(variance for variance, _ in pieces))
    # An untrusted part does not matter while the other parts' error dwarfs all of it; one without
    # an error does, and it dwarfs nothing.
    finite = [variance if math.isfinite(variance) else 0.0 for variance, _ in pieces]
    material = [
        part
        for number, (size, part) in enumerate(zip(sizes, with_mass, strict=True), 1)
        if size**2 > 0.25 * (sum(finite) - finite[number]) or math.isinf(pieces[number][0])
    ]
    statuses = [part.status for part in (z2, *material)]
    scale = float(np.exp(np.minimum(log_scale - float(z2.log_z), LOG_MAX)))
    return figures._replace(
        value=relative * scale,
        standard_error=error * scale,
        magnitude=sum(sizes) * scale,
        status=figures.status if figures.status is Status.nan_density else worst(statuses),
        is_log_scale=len(with_mass) == 1,
        degrees=_joint_degrees(pieces),
    )


def _joint_degrees(pieces: list[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variances that have their own (Satterthwaite)."""
    total = sum(variance for variance, _ in pieces)
    spread = sum(variance**2 / degrees for variance, degrees in pieces)
    return total**2 / spread if 0 < spread < math.inf else math.inf
