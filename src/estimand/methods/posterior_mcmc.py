"""The usual pipeline as a baseline: posterior draws by MCMC, then the average of the target."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from estimand.density import Density, PathPoint
from estimand.kernels import Kernel, State, Tuning
from estimand.methods.protocol import Run
from estimand.runtime import Runtime, compiled_per_model, run_task
from estimand.sampling import autocorrelation_size, log_density, nuts, r_hat, total
from estimand.settings import Settings, require_count
from estimand.trust import (
    EffectiveSizes,
    Finding,
    OutputEstimate,
    Status,
    check_mixing,
    check_size,
    no_mass,
    without_value,
)

# Uniform starts between −2 and 2 in unconstrained coordinates, as NumPyro's own, of which each
# chain takes the first with a positive density.
NUM_TRIES = 100
START_RADIUS = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PosteriorMCMC(Settings):
    """Samples the posterior and averages the return value: what one does without TABI.

    The standard error accounts for autocorrelation. It cannot know of a part of the target that
    no chain has visited.

    Args:
        num_samples: draws kept from each chain.
        num_warmup: draws discarded from the start of each chain.
        num_chains: independent chains, run side by side.
        kernel: None for NumPyro's NUTS with its adaptation; or a kernel of this library, run from
            prior draws with the step size it has.

    Examples:
        >>> method = ep.PosteriorMCMC(num_samples=500, kernel=ep.RandomWalk(scale=1.0))
        >>> result = ep.estimate_expectation(program(2.0), method)
        >>> abs(result.value - 2.5) < 4 * result.standard_error
        True
    """

    num_samples: int = 1000
    num_warmup: int = 1000
    num_chains: int = 4
    kernel: Kernel | None = None

    def __post_init__(self) -> None:
        for name in ("num_samples", "num_warmup", "num_chains"):
            require_count("PosteriorMCMC", name, getattr(self, name))
        if self.kernel is not None and not isinstance(self.kernel, Kernel):
            raise TypeError(f"PosteriorMCMC: kernel must be a kernel; it is {self.kernel!r}.")

    def check(self, density: Density) -> None:
        if self.kernel is None:
            density.require_continuous("PosteriorMCMC with NUTS")
        else:
            density.require_prior("PosteriorMCMC with a kernel of this library")
            self.kernel.check(density)
            self.kernel.tuning(density, 1)

    def run(self, rng_key: jax.Array, density: Density, runtime: Runtime) -> Run:
        density = density.part("gamma2")
        if self.kernel is None:
            sampled: _Sampled = run_task(
                runtime, _by_nuts, self, rng_key, density, kinds=(_Sampled,)
            )
        else:
            tuning = jax.tree.map(lambda x: x[0], self.kernel.tuning(density, 1))
            structure = dataclasses.replace(self, kernel=self.kernel.structure())
            sampled = run_task(
                runtime, _by_kernel, structure, rng_key, density, tuning, kinds=(_Sampled,)
            )
        if not sampled.is_started:
            raise RuntimeError(
                f"PosteriorMCMC: NUTS finds nowhere to start in program {density.name!r}: the "
                "density is 0 or NaN at all positions that it tried. Check the model."
            )
        values = np.asarray(sampled.outputs, float)
        return Run(
            outputs=tuple(_averaged(values[:, :, k]) for k in range(values.shape[2])),
            num_evaluations=sampled.num_evaluations,
            num_gradients=sampled.num_gradients,
        )


class _Sampled(NamedTuple):
    """Outputs by chain and draw, and what they cost."""

    outputs: np.ndarray
    num_evaluations: int
    num_gradients: int
    is_started: bool = True


def _by_nuts(settings: PosteriorMCMC, rng_key: jax.Array, density: Density) -> _Sampled:
    start_key, run_key = jax.random.split(rng_key)
    starts, is_started = _starts(settings.num_chains, start_key, density)
    if not np.asarray(is_started).all():
        return _Sampled(np.zeros((0, 0, 0)), 0, 0, is_started=False)
    sizes = settings.num_warmup, settings.num_samples
    positions, steps = nuts(*sizes, run_key, density, starts)
    return _Sampled(
        outputs=np.asarray(_outputs(density, positions)),
        num_evaluations=settings.num_chains * settings.num_samples,
        num_gradients=total(steps),
    )


@compiled_per_model(static_argnums=(0,))
def _starts(num_chains: int, rng_key: jax.Array, density: Density) -> tuple[jax.Array, jax.Array]:
    """For each chain the first of some positions with a positive density, and if there is one."""
    shape = (num_chains, NUM_TRIES, density.dimension)
    dtype = jnp.result_type(float)
    tried = jax.random.uniform(rng_key, shape, dtype, -START_RADIUS, START_RADIUS)
    is_possible = jax.vmap(jax.vmap(lambda u: log_density(density, u) > -jnp.inf))(tried)
    first = jnp.argmax(is_possible, axis=1)
    starts = jnp.take_along_axis(tried, first[:, None, None], axis=1)[:, 0]
    return starts, is_possible.any(axis=1)


@compiled_per_model
def _outputs(density: Density, positions: jax.Array) -> jax.Array:
    return jax.vmap(jax.vmap(density.outputs))(positions)


def _by_kernel(
    settings: PosteriorMCMC, rng_key: jax.Array, density: Density, tuning: Tuning
) -> _Sampled:
    outputs, evaluations, gradients = _run_chains(settings, rng_key, density, tuning)
    return _Sampled(np.asarray(outputs), total(evaluations), total(gradients))


@compiled_per_model(static_argnums=(0,))
def _run_chains(
    settings: PosteriorMCMC, rng_key: jax.Array, density: Density, tuning: Tuning
) -> tuple[jax.Array, jax.Array, jax.Array]:
    one = jnp.ones((), jnp.result_type(float))
    point = PathPoint(one, one)
    kernel = settings.kernel
    assert kernel is not None

    def chain(key: jax.Array) -> tuple:
        start_key, steps_key = jax.random.split(key)
        position, terms = density.draw_prior(start_key)
        start, start_cost = kernel.init(density, position, terms, point)

        def step(state: State, step_key: jax.Array) -> tuple:
            state, info = kernel.step(step_key, density, state, point, tuning)
            return state, (state.position, info.num_evaluations, info.num_gradients)

        length = settings.num_warmup + settings.num_samples
        keys = jax.random.split(steps_key, length)
        path: Any
        _, path = lax.scan(step, start, keys)
        positions, evaluations, gradients = path
        outputs = lax.map(density.outputs, positions[settings.num_warmup :], batch_size=1000)
        num_evaluations = 1 + evaluations.sum() + settings.num_samples
        return outputs, num_evaluations, gradients.sum() + start_cost.num_gradients

    return jax.vmap(chain)(jax.random.split(rng_key, settings.num_chains))


def _averaged(f: np.ndarray) -> OutputEstimate:
    """The average of one output, whose values have shape (chains, draws)."""
    ess = EffectiveSizes(z2=float(f.size))
    if not np.isfinite(f).all():
        detail = f"f is NaN or infinite at {(~np.isfinite(f)).sum():,} of {f.size:,} draws"
        return without_value(Finding(Status.nan_density, None, detail, "numbers"), ess=ess)
    if not f.any():
        # No draw has met the target: what is known is a bound, if f is an indicator.
        finding = no_mass(f"f is 0 at all {f.size:,} draws")
        return without_value(finding, ess=ess, num_draws=f.size)
    value = float(f.mean())
    scale = float(np.abs(f).max())
    ess = ess._replace(z1=float((f / scale).sum() ** 2 / ((f / scale) ** 2).sum()))
    if (f == f.flat[0]).all():
        finding = Finding(Status.low_ess, None, "f is the same at all draws", "size")
        return OutputEstimate(value, math.inf, ess=ess, findings=(finding,))
    effective = float(autocorrelation_size(f / scale))
    findings = check_size(min(effective, _carrying(f)))
    if f.shape[1] >= 4:
        findings += check_mixing(r_hat(f / scale))
    error = float((f / scale).std(ddof=1)) * scale / math.sqrt(effective)
    return OutputEstimate(value, error, ess=ess, findings=tuple(findings))


def _carrying(f: np.ndarray) -> float:
    """(Σ|f|)² / Σf²: how many draws carry the average."""
    magnitude = np.abs(f) / np.abs(f).max()
    return float(magnitude.sum() ** 2 / (magnitude**2).sum())
