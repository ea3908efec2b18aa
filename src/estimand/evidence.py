"""Evidence: an estimate of the normalising constant of one density, and how it went.

The estimator protocol is one method, ``estimate(rng_key, density) -> Evidence``. It can be jitted
and vmapped from outside. `ImportanceSampling` is the simplest estimator.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import logsumexp
from numpyro import handlers

from estimand.density import Density, is_invalid
from estimand.journal import remember
from estimand.program import ProgramError
from estimand.settings import Settings, require_count
from estimand.sites import TRACING

# Below this effective sample size the standard error itself is too noisy to be trusted.
MIN_ESS = 50.0
# Above this Pareto tail index the weights' variance is not reached at practical sample sizes.
MAX_PARETO_K = 0.7


class Status(enum.Enum):
    """How an estimation went; the values are the messages. Only `ok` can be trusted."""

    ok = "No diagnostic speaks against the estimate."
    low_ess = (
        "The effective sample size is too low for the standard error to be trusted: take more "
        "samples, more temperatures or a better kernel."
    )
    not_converged = (
        "The estimate has not settled: the Markov chains disagree with each other (R-hat above "
        "1.05), or the budget ran out before the asked error was reached. Allow more evaluations."
    )
    heavy_tailed = (
        "The weights are so heavy-tailed that their variance may not exist: take a proposal with "
        "wider tails or more temperatures, and check that the expectation exists."
    )
    unresolved = (
        "Much of the mass lies where floating-point numbers end or are too coarse: check that the "
        "expectation exists, take a prior with less mass at the edge of its support, or write the "
        "model so that this edge is at 0."
    )
    replicates_disagree = (
        "Independent explorations found mass that the estimate has missed: explore with more "
        "scouts or particles."
    )
    no_mass_found = (
        "No sample found any mass of the target. That is no proof that there is none: take more "
        "samples or more temperatures, or start from a proposal that reaches the target."
    )
    underflow = (
        "There is mass, but the expectation is nearer to 0 than floating point can hold: the "
        "logarithms of its parts are in log_z. Return a multiple of it that is larger."
    )
    nan_density = (
        "The density or the target was NaN or +inf at some positions, which were treated as "
        "having density 0: mend the program there."
    )

    def __bool__(self) -> bool:
        return self is Status.ok


class Trace(NamedTuple):
    """What happened at each temperature; log weights and positions only on request."""

    betas: jax.Array
    acceptance_rate: jax.Array
    log_weights: jax.Array | None
    positions: jax.Array | None


class Evidence(NamedTuple):
    """An estimate of Z = ∫ density, as arrays that can be jitted and vmapped over.

    `log_weights` are those of the samples at `positions`; their mean is Ẑ. The counts are per
    sample. `degrees` are those of Student's t where the variance comes from few replicates. The
    properties below are for people: they need concrete values.
    """

    log_z: jax.Array
    relative_variance: jax.Array
    log_weights: jax.Array
    positions: jax.Array
    evaluations: jax.Array
    gradients: jax.Array
    invalid: jax.Array
    trace: Trace | None = None
    degrees: jax.Array | float = math.inf

    @property
    def ess(self) -> float:
        """(Σw)² / Σw², the paper's effective sample size."""
        return effective_sample_size(np.asarray(self.log_weights))

    @property
    def pareto_k(self) -> float:
        return pareto_k(np.asarray(self.log_weights))

    @property
    def standard_error(self) -> float:
        """Standard error of log Z, which is the relative standard error of Z."""
        return math.sqrt(float(self.relative_variance))

    @property
    def num_evaluations(self) -> int:
        return total(self.evaluations)

    @property
    def num_gradients(self) -> int:
        return total(self.gradients)

    @property
    def num_invalid(self) -> int:
        return total(self.invalid)

    @property
    def status(self) -> Status:
        if self.num_invalid:
            return Status.nan_density
        if not np.isfinite(self.log_z):
            return Status.no_mass_found
        if self.pareto_k > MAX_PARETO_K:
            return Status.heavy_tailed
        is_fine = self.ess >= MIN_ESS and is_precise(self.relative_variance, self.degrees)
        return Status.ok if is_fine else Status.low_ess

    def __str__(self) -> str:
        number = f"log Z = {float(self.log_z):.6g} ± {self.standard_error:.2g}"
        return f"{number}  (ESS {self.ess:.0f}, {self.num_evaluations} evaluations, " + (
            f"{self.num_gradients} gradients, status {self.status.name})"
        )


class Estimator(Protocol):
    """What `TABI` and `log_evidence` need of an estimator of a normalising constant."""

    def check(self, density: Density) -> None:
        """Raises, before any work, if the estimator cannot take this density."""

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence: ...


def remembered(estimator: Estimator, rng_key: jax.Array, density: Density) -> Evidence:
    """What the estimator says of a density, which a run with a checkpoint asks only once."""
    label = type(estimator).__name__
    return remember(label, lambda: estimator.estimate(rng_key, density), Evidence, Trace)


def evidence_from_weights(
    log_weights: jax.Array,
    positions: jax.Array,
    evaluations: jax.Array,
    gradients: jax.Array,
    invalid: jax.Array,
    trace: Trace | None = None,
) -> Evidence:
    """Evidence from independent samples with weights of mean Z; NaN and +inf count as 0."""
    log_weights = jnp.where(is_invalid(log_weights), -jnp.inf, log_weights)
    count = log_weights.shape[0]
    log_z = logsumexp(log_weights) - math.log(count)
    normalised = jnp.exp(log_weights - jnp.where(jnp.isfinite(log_z), log_z, 0.0))
    variance = jnp.var(normalised, ddof=1) / count if count > 1 else jnp.inf
    relative_variance = jnp.where(jnp.isfinite(log_z), variance, jnp.inf)
    return Evidence(
        log_z, relative_variance, log_weights, positions, evaluations, gradients, invalid, trace
    )


def is_precise(relative_variance: jax.Array | float, degrees: jax.Array | float) -> bool:
    """Whether an estimated variance says that the true one is as small as `MIN_ESS` asks.

    From few replicates it must be smaller still, by the 5 % quantile of a χ² law over its degrees
    of freedom (Wilson and Hilferty 1931): else those runs would pass that underrate their error.
    """
    spread = 2 / (9 * float(degrees))
    share = max(1 - spread - 1.645 * math.sqrt(spread), 0.0) ** 3
    return float(relative_variance) <= share / MIN_ESS


def total(counts: jax.Array) -> int:
    """The sum of counts, which may be beyond 32 bits, as a Python integer."""
    return int(np.asarray(counts).sum(dtype=np.int64))


def effective_sample_size(log_weights: np.ndarray) -> float:
    """(Σw)² / Σw² of weights given by their logarithms; 0 when all are zero."""
    log_weights = np.asarray(log_weights, float)
    if log_weights.size == 0 or not np.max(log_weights) > -np.inf:
        return 0.0
    weights = np.exp(log_weights - np.max(log_weights))
    return float(weights.sum() ** 2 / (weights**2).sum())


def log_mean(log_values: np.ndarray) -> float:
    """log of the mean of numbers given by their logarithms."""
    top = log_values.max(initial=-np.inf)
    if not top > -np.inf:
        return -math.inf
    return float(top + np.log(np.mean(np.exp(log_values - top))))


def pareto_k(log_weights: np.ndarray) -> float:
    """Tail index of the weights: the shape of a generalised Pareto law fitted to the largest.

    The estimate of Zhang and Stephens (2009) with the weak prior at ½ and the tail length
    min(n/5, 3√n) of Vehtari et al. (2024). NaN when there are too few weights to say.
    """
    log_weights = np.sort(np.asarray(log_weights, float))
    tail = min(log_weights.size // 5, math.ceil(3 * math.sqrt(log_weights.size)))
    if tail < 5 or not log_weights[-tail - 1] > -np.inf:
        return math.nan
    weights = np.exp(log_weights[-tail - 1 :] - log_weights[-1])
    excess = weights[1:] - weights[0]
    if not excess[0] > 0:
        excess = excess[excess > 0]
        if excess.size < 5:
            return -math.inf
    return _generalised_pareto_shape(excess)


def _generalised_pareto_shape(excess: np.ndarray) -> float:
    size = excess.size
    grid = 30 + math.isqrt(size)
    quartile = excess[int(size / 4 + 0.5) - 1]
    steps = 1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    if not quartile > sys.float_info.min / excess[-1]:
        return math.inf  # Weights that differ by more than all numbers do.
    theta = steps / (3 * quartile) + 1 / excess[-1]
    shapes = np.mean(np.log1p(-theta[:, None] * excess), axis=1)
    log_likelihood = size * (np.log(-theta / shapes) - shapes - 1)
    posterior = np.exp(log_likelihood - log_likelihood.max())
    mean_theta = np.sum(theta * posterior) / posterior.sum()
    shape = np.mean(np.log1p(-mean_theta * excess))
    return float((size * shape + 5.0) / (size + 10.0))


def in_batches(
    function: Callable[[jax.Array], tuple[Any, Any]], rng_keys: jax.Array, batch_size: int | None
) -> tuple[Any, Any]:
    """Applies a function of several keys to all keys, `batch_size` of them at a time.

    The function gives what it knows of each sample and totals over its samples; the former are
    joined and the latter added up.
    """
    count = rng_keys.shape[0]
    if batch_size is None or batch_size >= count:
        return function(rng_keys)
    whole = count - count % batch_size
    grouped = rng_keys[:whole].reshape(-1, batch_size, *rng_keys.shape[1:])
    samples, totals = lax.map(function, grouped)
    samples = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), samples)
    totals = jax.tree.map(lambda x: x.sum(axis=0), totals)
    if whole == count:
        return samples, totals
    last_samples, last_totals = function(rng_keys[whole:])
    return (
        jax.tree.map(lambda a, b: jnp.concatenate([a, b]), samples, last_samples),
        jax.tree.map(jnp.add, totals, last_totals),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ImportanceSampling(Settings):
    """Importance sampling from the prior or from a proposal: unbiased.

    Args:
        num_samples: independent draws.
        proposal: None for the prior; a NumPyro guide, which is called with the program's
            arguments and must sample every latent site; a distribution, if there is one latent
            site; or a dict of distributions by site.
        batch_size: draws made at a time, which bounds memory; the result is the same.

    Examples:
        >>> evidence = ep.log_evidence(program(2.0), ep.ImportanceSampling())
        >>> abs(float(evidence.log_z) + 2.2655) < 4 * evidence.standard_error
        True
    """

    num_samples: int = 10_000
    proposal: Any = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        require_count("ImportanceSampling", "num_samples", self.num_samples)
        if self.batch_size is not None:
            require_count("ImportanceSampling", "batch_size", self.batch_size)
        if isinstance(self.proposal, Mapping):
            object.__setattr__(self, "proposal", _SiteDistributions(dict(self.proposal)))
        is_known = isinstance(self.proposal, dist.Distribution) or callable(self.proposal)
        if self.proposal is not None and not is_known:
            raise TypeError(
                "ImportanceSampling: proposal must be a guide, a distribution or a dict of "
                f"distributions by site; it is {self.proposal!r}."
            )

    def check(self, density: Density) -> None:
        if self.proposal is None:
            density.require_prior("ImportanceSampling without a proposal")
            return
        guide = self._guide(density)

        def draw(rng_key: jax.Array) -> None:
            sites = _run_guide(guide, density, rng_key)
            for place in density.layout.sites:
                if place.latent.name not in sites:
                    raise ProgramError(
                        f"ImportanceSampling: the proposal does not sample site "
                        f"{place.latent.name!r} of program {density.name!r}; it must sample every "
                        "latent site."
                    )

        jax.eval_shape(draw, jax.random.key(0))

    def estimate(self, rng_key: jax.Array, density: Density) -> Evidence:
        self.check(density)
        return _importance_sample(self, rng_key, density)

    def _guide(self, density: Density) -> Callable:
        if not isinstance(self.proposal, dist.Distribution):
            return self.proposal
        if len(density.layout.sites) != 1:
            names = [site.latent.name for site in density.layout.sites]
            raise ProgramError(
                f"ImportanceSampling: program {density.name!r} has latent sites {names}; give the "
                "proposal as a dict of distributions by site."
            )
        return _SiteDistributions({density.layout.sites[0].latent.name: self.proposal})


class _SiteDistributions:
    """A guide that draws each site from a distribution of its own."""

    def __init__(self, distributions: dict[str, dist.Distribution]):
        self.distributions = distributions

    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        for name, distribution in self.distributions.items():
            numpyro.sample(name, distribution)


def _run_guide(guide: Callable, density: Density, rng_key: jax.Array) -> dict:
    args, kwargs = density.arguments()
    with TRACING, handlers.trace() as sites, handlers.seed(rng_seed=rng_key):
        guide(*args, **kwargs)
    return {name: site for name, site in sites.items() if site["type"] == "sample"}


@functools.partial(jax.jit, static_argnums=0)
def _importance_sample(
    settings: ImportanceSampling, rng_key: jax.Array, density: Density
) -> Evidence:
    def from_prior(key: jax.Array) -> tuple:
        position, terms = density.draw_prior(key)
        return position, terms.log_weight

    def from_guide(key: jax.Array) -> tuple:
        sites = _run_guide(settings._guide(density), density, key)
        log_proposal = sum(jnp.sum(site["fn"].log_prob(site["value"])) for site in sites.values())
        position, terms = density.terms_at({name: s["value"] for name, s in sites.items()})
        log_weight = terms.log_prior + terms.log_weight - log_proposal
        is_outside = terms.log_prior == -jnp.inf
        return position, jnp.where(is_outside, -jnp.inf, log_weight)

    draw = from_prior if settings.proposal is None else from_guide
    keys = jax.random.split(rng_key, settings.num_samples)
    samples, _ = in_batches(lambda batch: (jax.vmap(draw)(batch), ()), keys, settings.batch_size)
    positions, log_weights = samples
    ones = jnp.ones(settings.num_samples, jnp.int32)
    invalid = is_invalid(log_weights).astype(jnp.int32)
    return evidence_from_weights(log_weights, positions, ones, 0 * ones, invalid)
