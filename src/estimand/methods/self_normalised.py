"""The baseline that takes one set of weighted posterior samples for everything."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from estimand.density import Density
from estimand.estimators import Estimator, Request, estimate_all
from estimand.methods.protocol import Run
from estimand.runtime import Runtime, compiled_per_model, run_task
from estimand.sampling import effective_sample_size, log_mean
from estimand.settings import Settings
from estimand.trust import (
    EffectiveSizes,
    Evidence,
    Finding,
    OutputEstimate,
    Parts,
    Status,
    check_evidence,
    check_size,
    check_tail,
    no_mass,
    without_value,
)


@dataclasses.dataclass(frozen=True, repr=False)
class SelfNormalised(Settings):
    """One set of weighted posterior samples for numerator and denominator: Σwf / Σw.

    The paper's "AnIS" baseline when the estimator is `AnIS`. It does not look at the target.

    Args:
        estimator: gives the weighted samples of the posterior.

    Examples:
        >>> method = ep.SelfNormalised(ep.AnIS(num_samples=1000, num_temperatures=20))
        >>> result = ep.estimate_expectation(program(2.0), method)
        >>> abs(result.value - 2.5) < 4 * result.standard_error
        True
    """

    estimator: Estimator

    def __post_init__(self) -> None:
        if not isinstance(self.estimator, Estimator):
            raise TypeError(
                f"SelfNormalised: expected an estimator such as AnIS(); got {self.estimator!r}."
            )

    def __repr__(self) -> str:
        return f"SelfNormalised({self.estimator!r})"

    def check(self, density: Density) -> None:
        self.estimator.check(density)

    def run(self, rng_key: jax.Array, density: Density, runtime: Runtime) -> Run:
        density = density.part("gamma2")
        request = Request(self.estimator, rng_key, density)
        evidence = estimate_all(runtime, [request])[0]
        found = run_task(runtime, _outputs, density, evidence.positions)
        outputs = np.asarray(found, float)
        return Run(
            outputs=tuple(_weighted(f, evidence) for f in outputs.T),
            num_evaluations=evidence.num_evaluations + np.size(evidence.log_weights),
            num_gradients=evidence.num_gradients,
        )


@compiled_per_model
def _outputs(density: Density, positions: jax.Array) -> jax.Array:
    return jax.lax.map(density.outputs, positions, batch_size=min(10_000, positions.shape[0]))


def _weighted(f: np.ndarray, evidence: Evidence) -> OutputEstimate:
    """Σwf / Σw of one output, with its error and findings."""
    findings = check_evidence(evidence, "Z2")
    if not np.isfinite(evidence.log_z):
        return without_value(*findings, parts=Parts(normaliser=evidence))
    log_weights = np.asarray(evidence.log_weights, float)
    weights = np.exp(log_weights - float(evidence.log_z)) / log_weights.size
    weights = weights / weights.sum()
    f = np.where(weights > 0, f, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_wf = log_weights + np.log(np.abs(f))
    plus, minus = (_part(np.where(sign * f > 0, log_wf, -np.inf), evidence) for sign in (1, -1))
    scale = float(np.abs(f).max()) or 1.0
    products = weights * (f / scale)
    squares = (products**2).sum()
    ess = EffectiveSizes(
        z1=float(products.sum() ** 2 / squares) if squares > 0 else 0.0,
        z2=evidence.ess,
        plus=plus.ess,
        minus=minus.ess,
    )
    parts = Parts(plus=plus, minus=minus, normaliser=evidence)
    unknown = without_value(*findings, parts=parts, ess=ess, num_draws=evidence.ess)
    if not np.isfinite(f).all():
        detail = f"f is NaN or infinite at {(~np.isfinite(f)).sum():,} samples"
        return unknown.with_findings([Finding(Status.nan_density, None, detail, "numbers")])
    if not f.any():
        return unknown.with_findings([no_mass(f"f is 0 at all {f.size:,} samples")])
    mean = float(weights @ (f / scale))
    error = math.sqrt(float(np.sum((weights * (f / scale - mean)) ** 2)))
    return unknown._replace(
        value=mean * scale,
        standard_error=error * scale,
        findings=(*findings, *_check_products(log_wf)),
    )


def _part(log_weights: np.ndarray, evidence: Evidence) -> Evidence:
    """The same samples as evidence of γf⁺ or γf⁻."""
    log_weights = np.where(log_weights < np.inf, log_weights, -np.inf)
    log_z = log_mean(log_weights)
    relative_variance = math.inf
    if math.isfinite(log_z) and log_weights.size > 1:
        relative_variance = float(np.exp(log_weights - log_z).var(ddof=1) / log_weights.size)
    zeros = np.zeros(log_weights.size, np.int32)
    arrays: dict[str, Any] = {
        "log_z": np.asarray(log_z),
        "relative_variance": np.asarray(relative_variance),
        "log_weights": log_weights,
        "positions": evidence.positions,
    }
    arrays |= dict.fromkeys(("evaluations", "gradients", "invalid"), zeros)
    return Evidence(**arrays)


def _check_products(log_wf: np.ndarray) -> list[Finding]:
    """What the weights of f say, whichever sign it has."""
    return check_size(effective_sample_size(log_wf), "Z1") + check_tail(log_wf, "Z1")
