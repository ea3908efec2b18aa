"""The baseline that takes one set of weighted posterior samples for everything."""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np

from estimand.density import Density
from estimand.estimators.protocol import Estimator, remembered
from estimand.methods.protocol import Figures, Run, rule_of_three, worst
from estimand.runtime.journal import remember
from estimand.sampling.weights import effective_sample_size, log_mean, pareto_k
from estimand.trust.evidence import Evidence
from estimand.trust.status import Status
from estimand.trust.thresholds import MAX_PARETO_K, MIN_ESS


@dataclasses.dataclass(frozen=True, repr=False)
class SelfNormalised:
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
        if not hasattr(self.estimator, "estimate"):
            raise TypeError(
                f"SelfNormalised: expected an estimator such as AnIS(); got {self.estimator!r}."
            )

    def __repr__(self) -> str:
        return f"SelfNormalised({self.estimator!r})"

    def check(self, density: Density) -> None:
        self.estimator.check(density)

    def run(self, rng_key: jax.Array, density: Density) -> Run:
        density = density.part("gamma2")
        evidence = jax.block_until_ready(remembered(self.estimator, rng_key, density))
        log_weights = np.asarray(evidence.log_weights, float)
        found = remember("outputs", lambda: _outputs(density, evidence.positions))
        outputs = np.asarray(found, float)
        return Run(
            figures=tuple(_weighted_figures(log_weights, f, evidence) for f in outputs.T),
            num_evaluations=evidence.num_evaluations + log_weights.size,
            num_gradients=evidence.num_gradients,
            ess_z2=evidence.ess,
            log_z2=float(evidence.log_z),
            evidence=(("gamma2", evidence),),
        )


@jax.jit
def _outputs(density: Density, positions: jax.Array) -> jax.Array:
    return jax.lax.map(density.outputs, positions, batch_size=min(10_000, positions.shape[0]))


def _weighted_figures(log_weights: np.ndarray, f: np.ndarray, evidence: Evidence) -> Figures:
    if not np.isfinite(evidence.log_z):
        return Figures(0.0, math.inf, evidence.status, 0.0)
    weights = np.exp(log_weights - float(evidence.log_z)) / log_weights.size
    weights = weights / weights.sum()
    f = np.where(weights > 0, f, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_wf = log_weights + np.log(np.abs(f))
    log_parts = [np.where(sign * f > 0, log_wf, -np.inf) for sign in (1, -1)]
    log_z1 = [log_mean(part) for part in log_parts]
    products = weights * (f / (np.abs(f).max() or 1.0))
    squares = (products**2).sum()
    figures = Figures(
        value=0.0,
        standard_error=math.inf,
        status=evidence.status if evidence.status is not Status.ok else Status.no_mass_found,
        ess_z1=float(products.sum() ** 2 / squares) if squares > 0 else 0.0,
        upper_bound=rule_of_three(evidence.ess),
        log_z1_plus=log_z1[0],
        log_z1_minus=log_z1[1],
        ess_z1_plus=effective_sample_size(log_parts[0]),
        ess_z1_minus=effective_sample_size(log_parts[1]),
    )
    if not np.isfinite(f).all():
        return figures._replace(status=Status.nan_density)
    if not f.any():
        return figures
    scale = np.abs(f).max()
    mean = float(weights @ (f / scale))
    error = math.sqrt(float(np.sum((weights * (f / scale - mean)) ** 2)))
    statuses = [evidence.status]
    effective = effective_sample_size(log_wf)
    statuses.append(Status.ok if effective >= MIN_ESS else Status.low_ess)
    if pareto_k(log_wf) > MAX_PARETO_K:
        statuses.append(Status.heavy_tailed)
    return figures._replace(
        value=mean * scale, standard_error=error * scale, status=worst(statuses)
    )
