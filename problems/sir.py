"""An epidemic whose cost rises exponentially with its reproduction number (the paper's 5.2).

The truth is by two-dimensional quadrature: Gauss-Legendre panels over the contact rate and the
number of infected people at the start; the equations by the classical Runge-Kutta method with a
given number of steps a day, on all nodes at once. The same with few steps, or with an adaptive
solver of low accuracy, shows what the solver's error does to the expectation.
`python -m problems.sir` prints both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpy.typing import NDArray
from scipy import integrate, special, stats

from problems.problem import Problem, panels

POPULATION, RECOVERY, DAYS, STEPS_A_DAY = 1e4, 0.25, 15, 10
DATA = np.array([25, 26, 25, 19, 32, 15, 25, 7, 14, 26, 13, 23, 24, 24, 30])

# By Gauss-Legendre panels of 600 x 420 nodes and 64 solver steps a day, stable to 1e-9. The model
# takes 10 steps a day, which moves E by about 1e-6 of itself.
EXPECTATION, LOG_Z1, LOG_Z2 = 3.015842088e7, -54.76700231, -71.98897706

Array = NDArray[np.float64]
Solver = Callable[[Array, Array], Array]
_Pair = tuple[jax.Array, jax.Array]
_Triple = tuple[jax.Array, jax.Array, jax.Array]


def day(beta: jax.Array, state: _Pair) -> tuple[_Pair, jax.Array]:
    """One day by the classical Runge-Kutta method: (susceptible, infected), and the newly infected.

    The state stays in separate arrays: stacking it inside the loop is slow on a CPU.
    """
    h = 1.0 / STEPS_A_DAY

    def rates(s: jax.Array, i: jax.Array) -> _Pair:
        new = beta * s * i / POPULATION
        return new, new - RECOVERY * i

    def step(state: _Triple, _: None) -> tuple[_Triple, None]:
        s, i, c = state
        n1, d1 = rates(s, i)
        n2, d2 = rates(s - h / 2 * n1, i + h / 2 * d1)
        n3, d3 = rates(s - h / 2 * n2, i + h / 2 * d2)
        n4, d4 = rates(s - h * n3, i + h * d3)
        new = h / 6 * (n1 + 2 * n2 + 2 * n3 + n4)
        return (s - new, i + h / 6 * (d1 + 2 * d2 + 2 * d3 + d4), c + new), None

    (s, i, c), _ = jax.lax.scan(step, (*state, jnp.zeros_like(beta)), None, length=STEPS_A_DAY)
    return (s, i), c


def new_infections(beta: jax.Array, infected: jax.Array) -> jax.Array:
    """The newly infected on each of the 15 days."""
    start = (POPULATION - infected, infected)
    return jax.lax.scan(lambda state, _: day(beta, state), start, None, length=DAYS)[1]


def sir(y: np.ndarray, *, is_bounded: bool = True) -> Any:
    """The cost of the epidemic.

    Args:
        y: newly infected people on each day.
        is_bounded: the parameters' bounds are those of their priors. Otherwise the priors are
            normal and the density is 0 beyond the same bounds: kernels then move in the model's
            own coordinates, as those of the authors' code do. The posterior is the same, and both
            Z are smaller by the share of the normal priors that is within the bounds.
    """
    if is_bounded:
        beta = numpyro.sample("beta", dist.TruncatedNormal(2.0, 1.5, low=0.0))
        i0 = numpyro.sample("i0", dist.TruncatedNormal(10.0, 10.0, low=0.0, high=1000.0))
    else:
        beta = numpyro.sample("beta", dist.Normal(2.0, 1.5))
        i0 = numpyro.sample("i0", dist.Normal(10.0, 10.0))
        is_inside = (beta > 0) & (i0 > 0) & (i0 < 1000)
        numpyro.factor("bounds", jnp.where(is_inside, 0.0, -jnp.inf))
    new = new_infections(beta, 10.0 * i0)
    # Once everybody is infected the daily count rounds to zero, or just below, and the log of the
    # mean would be NaN. The floor is far below any mean that has weight.
    mean = jnp.maximum(new, 1e-10)
    with numpyro.plate("days", len(y)):
        numpyro.sample("y", dist.NegativeBinomial2(mean, 0.5), obs=y)
    return 1e12 * jax.nn.sigmoid(10.0 * beta / RECOVERY - 30.0)


# The truth ---------------------------------------------------------------------------------------

DISPERSION, FLOOR = 0.5, 1e-10
# Beyond the last edges the posterior, with or without the cost, has less than 1e-12 of its mass.
_BETA = (0.0, 0.15, 0.3, 0.45, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.6, 3.5, 6.0)
_I0 = (0.0, 0.1, 0.5, 1.5, 3.0, 6.0, 10.0, 15.0, 22.0, 30.0, 45.0, 70.0, 120.0)


class Truth(NamedTuple):
    """The expectation, the log Z of its parts, and the posterior of the contact rate."""

    value: float
    log_z1: float
    log_z2: float
    beta: Array
    beta_mass: Array

    def quantile(self, probability: float) -> float:
        """Of the posterior of the contact rate, to the distance of the nodes."""
        return float(np.interp(probability, np.cumsum(self.beta_mass), self.beta))

    def mass_above(self, beta: float) -> float:
        """Posterior probability of a larger contact rate."""
        return float(self.beta_mass[self.beta > beta].sum())


def runge_kutta(steps_a_day: int) -> Solver:
    """The newly infected on each day, shape (days, nodes), by so many steps a day."""

    def solve(beta: Array, infected: Array) -> Array:
        h = 1.0 / steps_a_day
        s, i = POPULATION - infected, infected.copy()
        days = []

        def rates(s: Array, i: Array) -> tuple[Array, Array]:
            new = beta * s * i / POPULATION
            return new, new - RECOVERY * i

        for _ in range(DAYS):
            total = np.zeros_like(s)
            for _ in range(steps_a_day):
                n1, d1 = rates(s, i)
                n2, d2 = rates(s - h / 2 * n1, i + h / 2 * d1)
                n3, d3 = rates(s - h / 2 * n2, i + h / 2 * d2)
                n4, d4 = rates(s - h * n3, i + h * d3)
                new = h / 6 * (n1 + 2 * n2 + 2 * n3 + n4)
                s, total = s - new, total + new
                i = i + h / 6 * (d1 + 2 * d2 + 2 * d3 + d4)
            days.append(total)
        return np.array(days)

    return solve


def adaptive(tolerance: float) -> Solver:
    """The same by an adaptive method of order 5 with this relative tolerance, node by node."""

    def slope(_: float, state: Array, beta: float) -> list[float]:
        s, i, _c = state
        new = beta * s * i / POPULATION
        return [-new, new - RECOVERY * i, new]

    def solve(beta: Array, infected: Array) -> Array:
        columns = []
        for b, i in zip(beta, infected, strict=True):
            start = [POPULATION - i, i, 0.0]
            found = integrate.solve_ivp(
                slope,
                (0, DAYS),
                start,
                args=(b,),
                t_eval=np.arange(DAYS + 1),
                rtol=tolerance,
                atol=1e-3 * tolerance,
            )
            columns.append(np.diff(found.y[2]))
        return np.array(columns).T

    return solve


def truth(solver: Solver, num_nodes: int = 40) -> Truth:
    """With this many nodes in each panel of either parameter.

    Where a solver that is too coarse gives nonsense, the mean is taken to be `FLOOR`.
    """
    beta, w_beta = panels(_BETA, num_nodes)
    i0, w_i0 = panels(_I0, num_nodes)
    b, i = (grid.ravel() for grid in np.meshgrid(beta, i0, indexing="ij"))
    with np.errstate(over="ignore", invalid="ignore"):
        new = solver(b, 10.0 * i)
        mean = np.where(new > FLOOR, new, FLOOR)
    share = DISPERSION / (DISPERSION + mean)
    log_gamma = stats.nbinom.logpmf(DATA[:, None], DISPERSION, share).sum(axis=0)
    log_gamma += stats.norm.logpdf(b, 2.0, 1.5) - special.log_ndtr(2.0 / 1.5)
    log_gamma += stats.norm.logpdf(i, 10.0, 10.0)
    log_gamma -= math.log(special.ndtr(99.0) - special.ndtr(-1.0))
    log_gamma += np.log(np.outer(w_beta, w_i0).ravel())
    log_f = math.log(1e12) + special.log_expit(10.0 * b / RECOVERY - 30.0)
    log_z2 = special.logsumexp(log_gamma)
    log_z1 = special.logsumexp(log_gamma + log_f)
    mass = np.exp(log_gamma - log_z2).reshape(beta.size, -1).sum(axis=1)
    return Truth(math.exp(log_z1 - log_z2), float(log_z1), float(log_z2), beta, mass)


def _sir() -> Problem:
    return Problem(
        name="sir",
        model=sir,
        args=(DATA,),
        value=EXPECTATION,
        log_z2=LOG_Z2,
        log_z1_plus=LOG_Z1,
        log_z1_minus=-math.inf,
        how="two-dimensional quadrature, Runge-Kutta with 64 steps a day; the model takes 10 "
        "steps a day, which moves E by about 1e-6 of itself",
        tags=frozenset({"continuous", "half-line", "bounded", "rare", "gradient"}),
    )


def problems() -> list[Problem]:
    """The one problem of this module."""
    return [_sir()]


def main() -> None:
    """Prints the truth, what the solver does to it, and where the posterior is."""
    exact = truth(runge_kutta(64))
    print(f"E = {exact.value:.9e}  log Z1 = {exact.log_z1:.8f}  log Z2 = {exact.log_z2:.8f}")
    for steps in (1, 2, 4, 10):
        found = truth(runge_kutta(steps), 20).value
        print(f"Runge-Kutta, {steps:2} steps a day: {found / exact.value - 1:+.2e}")
    for tolerance in (1e-3, 1e-6):
        found = truth(adaptive(tolerance), 8).value
        print(f"adaptive, relative tolerance {tolerance}: {found / exact.value - 1:+.2e}")
    quantiles = ", ".join(f"{exact.quantile(p):.3f}" for p in (0.005, 0.025, 0.5, 0.975, 0.995))
    print(f"posterior of β, 0.5, 2.5, 50, 97.5, 99.5 %: {quantiles}")
    for edge in (0.3, 0.7, 1.0):
        print(f"posterior mass of β > {edge}: {exact.mass_above(edge):.3e}")


if __name__ == "__main__":
    main()
