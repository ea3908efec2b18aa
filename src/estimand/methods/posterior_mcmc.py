"""The usual pipeline as a baseline: posterior draws by MCMC, then the average of the target."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro import infer
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

from estimand.density import Density, PathPoint
from estimand.kernels.protocol import Kernel, State, Tuning
from estimand.methods.protocol import Figures, Run, rule_of_three, worst
from estimand.model.sites import TRACING, ProgramError
from estimand.runtime.journal import remember
from estimand.sampling.weights import total
from estimand.settings import Settings, require_count
from estimand.trust.status import Status
from estimand.trust.thresholds import MIN_ESS

MAX_R_HAT = 1.05


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
        if self.kernel is not None and not hasattr(self.kernel, "step"):
            raise TypeError(f"PosteriorMCMC: kernel must be a kernel; it is {self.kernel!r}.")

    def check(self, density: Density) -> None:
        if self.kernel is None:
            density.require_continuous("PosteriorMCMC with NUTS")
            for site in density.layout.sites:
                if site.latent.is_altered:
                    raise ProgramError(
                        f"PosteriorMCMC: site {site.latent.name!r} of program {density.name!r} is "
                        "scaled or masked, and NumPyro's NUTS reads such a latent site otherwise "
                        "than this library. Give a kernel of this library, as in "
                        "PosteriorMCMC(kernel=HMC())."
                    )
        else:
            density.require_prior("PosteriorMCMC with a kernel of this library")
            self.kernel.check(density)
            self.kernel.tuning(density, 1)

    def run(self, rng_key: jax.Array, density: Density) -> Run:
        density = density.part("gamma2")
        if self.kernel is None:
            outputs, num_evaluations, num_gradients = remember(
                "NUTS", lambda: self._numpyro_nuts(rng_key, density)
            )
        else:
            tuning = jax.tree.map(lambda x: x[0], self.kernel.tuning(density, 1))
            structure = dataclasses.replace(self, kernel=self.kernel.structure())
            outputs, cost = remember(
                "chains", lambda: _run_chains(structure, rng_key, density, tuning)
            )
            num_evaluations, num_gradients = (total(x) for x in cost)
        values = np.asarray(outputs, float)
        return Run(
            figures=tuple(_chain_figures(values[:, :, k]) for k in range(values.shape[2])),
            num_evaluations=num_evaluations,
            num_gradients=num_gradients,
            ess_z2=float(self.num_chains * self.num_samples),
        )

    def _numpyro_nuts(self, rng_key: jax.Array, density: Density) -> tuple[jax.Array, int, int]:
        outputs, steps, energies = _run_nuts(self, rng_key, density)
        if not np.isfinite(energies).all():
            raise RuntimeError(
                f"PosteriorMCMC: NUTS finds nowhere to start in program {density.name!r}: the "
                "density is 0 or NaN at all positions that it tried. Check the model."
            )
        return outputs, self.num_chains * self.num_samples, total(steps)


@functools.partial(jax.jit, static_argnums=0)
def _run_nuts(
    settings: PosteriorMCMC, rng_key: jax.Array, density: Density
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Outputs by chain and draw, gradients of each transition, potential energies at the start.

    NumPyro's kernel without its `MCMC`, which would compile again at every call.
    """
    with TRACING:
        kernel = infer.NUTS(density.layout.program.model)
        args, kwargs = density.arguments()
        keys = jax.random.split(rng_key, settings.num_chains)
        start = kernel.init(keys, settings.num_warmup, None, args, kwargs)

        def step(state: Any, _: None) -> tuple:
            state = kernel.sample(state, args, kwargs)
            return state, (state.z, state.num_steps)

        path: Any
        _, path = lax.scan(step, start, None, length=settings.num_warmup + settings.num_samples)
        positions, steps = path
        kept = jax.tree.map(lambda x: jnp.swapaxes(x[settings.num_warmup :], 0, 1), positions)
        draws = jax.vmap(jax.vmap(kernel.postprocess_fn(args, kwargs)))(kept)
        latents = {site.latent.name: draws[site.latent.name] for site in density.layout.sites}
        outputs = jax.vmap(jax.vmap(density.outputs_at))(latents)
        return outputs, steps, start.potential_energy


@functools.partial(jax.jit, static_argnums=0)
def _run_chains(
    settings: PosteriorMCMC, rng_key: jax.Array, density: Density, tuning: Tuning
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
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
        return outputs, (num_evaluations, gradients.sum() + start_cost.num_gradients)

    return jax.vmap(chain)(jax.random.split(rng_key, settings.num_chains))


def _chain_figures(f: np.ndarray) -> Figures:
    """Figures from the values of one output, of shape (chains, draws)."""
    if not np.isfinite(f).all():
        return Figures(0.0, math.inf, Status.nan_density, 0.0)
    if not f.any():
        # No draw has met the target: what is known is a bound, if f is an indicator.
        return Figures(0.0, math.inf, Status.no_mass_found, 0.0, upper_bound=rule_of_three(f.size))
    value = float(f.mean())
    scale = np.abs(f).max()
    ess_z1 = float((f / scale).sum() ** 2 / ((f / scale) ** 2).sum())
    if (f == f.flat[0]).all():
        return Figures(value, math.inf, Status.low_ess, ess_z1)
    ess = float(effective_sample_size(f / scale))
    error = float((f / scale).std(ddof=1)) * scale / math.sqrt(ess)
    statuses = [Status.ok if min(ess, _spread_size(f)) >= MIN_ESS else Status.low_ess]
    if f.shape[1] >= 4 and float(split_gelman_rubin(f / scale)) > MAX_R_HAT:
        statuses.append(Status.not_converged)
    return Figures(value, error, worst(statuses), ess_z1)


def _spread_size(f: np.ndarray) -> float:
    """(Σ|f|)² / Σf²: how many draws carry the average."""
    magnitude = np.abs(f) / np.abs(f).max()
    return float(magnitude.sum() ** 2 / (magnitude**2).sum())
