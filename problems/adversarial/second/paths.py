"""Sorted outputs, and targets and densities that are computed in a loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import betainc, gammaln, lambertw, ndtr
from scipy.stats import beta, gamma, norm, poisson, studentized_range

from problems.adversarial.program import Adversarial
from problems.adversarial.second.integrals import (
    adaptive,
    backward_walk,
    forward_walk,
    integral,
    legendre,
    trapezoid,
)

CLICKS = np.array([45, 52, 60, 48, 38])
VIEWS = np.array([1000, 1000, 1000, 900, 1100])


def best_variant(clicks, views):
    with numpyro.plate("variants", clicks.size):
        rate = numpyro.sample("rate", dist.Beta(1.0, 1.0))
        numpyro.sample("clicks", dist.Binomial(views, rate), obs=clicks)
    return jnp.arange(clicks.size) == jnp.argmax(rate)


def best_variant_truth():
    posterior = [beta(1 + c, 1 + v - c) for c, v in zip(CLICKS, VIEWS, strict=True)]
    x, w = legendre(np.linspace(0, 0.15, 16), 40)
    below = np.array([p.cdf(x) for p in posterior])
    return [
        float(np.sum(w * p.pdf(x) * np.prod(np.delete(below, i, axis=0), axis=0)))
        for i, p in enumerate(posterior)
    ]


def best_variant_check():
    v, w = trapezoid(-8, 0, 4001)
    p = 1 / (1 + np.exp(-v))
    a, b = (1 + CLICKS)[:, None], (1 + VIEWS - CLICKS)[:, None]
    logs = a * np.log(p) + b * np.log1p(-p) - gammaln(a) - gammaln(b) + gammaln(a + b)
    density, below = np.exp(logs), betainc(a, b, p)
    return list(np.sum(w * density * np.prod(below, axis=0) / below, axis=1))


def sample_range():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([10]))
    spread = jnp.max(x) - jnp.min(x)
    return {"mean": spread, "wide": spread > 7.0}


def sample_range_truth():
    rule = trapezoid(-12, 12, 2001)
    mean = integral(lambda x: 1 - ndtr(x) ** 10 - ndtr(-x) ** 10, rule)
    inside = integral(lambda x: 10 * norm.pdf(x) * (ndtr(x + 7) - ndtr(x)) ** 9, rule)
    return [mean, 1 - inside]


def sample_range_check():
    x, w = trapezoid(-12, 12, 2001)
    mean = 2 * np.sum(w * x * 10 * norm.pdf(x) * ndtr(x) ** 9)
    return [float(mean), float(studentized_range.sf(7.0, 10, np.inf))]


def median_of_nine_cauchy():
    x = numpyro.sample("x", dist.Cauchy(0.0, 1.0).expand([9]))
    return jnp.median(x) ** 2


def median_of_nine_cauchy_truth():
    def integrand(u):
        return beta.pdf(u, 5, 5) / np.tan(np.pi * u) ** 2

    return [integral(integrand, legendre([0, 0.5, 1], 60))]


def median_of_nine_cauchy_check():
    def integrand(v):
        x = np.sinh(v)
        below = np.arctan2(1.0, -x) / np.pi
        above = np.arctan2(1.0, x) / np.pi
        return x**2 / (np.pi * np.cosh(v)) * 630 * (below * above) ** 4

    return [integral(integrand, trapezoid(-25, 25, 3001))]


ABILITY = np.array([0.0, 0.5, 0.25, -0.5, -4.0])
SPREAD = np.array([0.5, 0.25, 0.75, 1.0, 0.75])


def underdog_wins(ability, spread):
    with numpyro.plate("teams", ability.size):
        form = numpyro.sample("form", dist.Normal(ability, spread))
    return jnp.argmax(form) == 4


def underdog_wins_truth():
    def integrand(x):
        z = (x - ABILITY[:4, None]) / SPREAD[:4, None]
        return norm.pdf(x, -4, 0.75) * np.prod(ndtr(z), axis=0)

    return [integral(integrand, trapezoid(-8, 5, 4001))]


def underdog_wins_check():
    def integrand(x):
        z = (x - ABILITY[:4, None]) / SPREAD[:4, None]
        slope = norm.pdf(z) / SPREAD[:4, None] / ndtr(z)
        return np.prod(ndtr(z), axis=0) * slope.sum(axis=0) * ndtr((-4 - x) / 0.75)

    return [integral(integrand, legendre([-7, -4, -2, -1, 0, 1, 3, 6], 60))]


def walk_hits_barrier():
    with numpyro.plate("steps", 25):
        step = numpyro.sample("step", dist.Normal(0.0, 1.0))

    def move(carry, z):
        position, peak = carry
        position = position + z
        return (position, jnp.maximum(peak, position)), None

    (_, peak), _ = jax.lax.scan(move, (0.0, 0.0), step)
    return peak > 18.0


def walk_hits_barrier_truth():
    # First passage: alive after k steps, and above the barrier with the next one.
    rule = legendre(np.linspace(-40, 18, 21), 20)
    hit = norm.sf(18.0)
    for k in range(1, 25):
        (x, w), density = forward_walk(norm.pdf, 0.0, k, rule)
        hit += float(np.sum(w * density * ndtr(x - 18)))
    return [hit]


def walk_hits_barrier_check():
    x, w = legendre(np.linspace(-30, 18, 13), 28)
    kernel = norm.pdf(x[None, :] - x[:, None]) * w
    future = ndtr(x - 18)
    for _ in range(23):
        future = ndtr(x - 18) + kernel @ future
    return [float(norm.sf(18.0) + np.sum(w * norm.pdf(x) * future))]


def insurer_ruin(capital, premium):
    with numpyro.plate("years", 8):
        claim = numpyro.sample("claim", dist.Exponential(1.0))

    def year(k, state):
        reserve, lowest = state
        reserve = reserve + premium - claim[k]
        return reserve, jnp.minimum(lowest, reserve)

    _, lowest = jax.lax.fori_loop(0, 8, year, (capital, capital))
    return lowest < 0.0


def insurer_ruin_truth():
    """The claims are gaps of a unit Poisson process: solvent if N(4 + 1.5 k) >= k for every k."""
    count = np.arange(200)
    state = poisson.pmf(count, 5.5) * (count >= 1)
    for k in range(2, 9):
        step = poisson.pmf(count, 1.5)
        state = np.convolve(state, step)[:200] * (count >= k)
    return [1 - float(state.sum())]


def insurer_ruin_check():
    """Value function of the reserve, from the last year backwards."""
    # survive_k(r) = integral over claims c in (0, r + 1.5) of exp(-c) survive_{k-1}(r + 1.5 - c).
    x, w = legendre([0.0, 1.0], 40)
    nodes = np.polynomial.chebyshev.chebpts1(60)
    low, high = 0.0, 4 + 1.5 * 8

    def value(reserve, fit):
        top = reserve[:, None] + 1.5
        after = top * (1 - x)
        return np.sum(w * top * np.exp(-top * x) * fit(after), axis=1)

    fit = np.polynomial.Chebyshev([1.0], domain=[low, high + 1.5])
    for _ in range(7):
        grid = low + (high - low) * (nodes + 1) / 2
        # The range that the remaining years can reach shrinks with each year.
        fit = np.polynomial.Chebyshev.fit(grid, value(grid, fit), 40, domain=[low, high])
        high -= 1.5
    return [1 - float(value(np.array([4.0]), fit)[0])]


def waiting_time():
    """Lindley's recursion: how long the eleventh customer waits."""
    with numpyro.plate("customers", 10):
        service = numpyro.sample("service", dist.Exponential(1.0))
        gap = numpyro.sample("gap", dist.Exponential(0.75))

    def serve(wait, pair):
        return jnp.maximum(wait + pair[0] - pair[1], 0.0), None

    wait, _ = jax.lax.scan(serve, 0.0, (service, gap))
    return {"mean": wait, "none": wait == 0.0}


def waiting_time_truth():
    """Chain of the number that an arrival finds; each of them stays an exponential time."""
    found = np.zeros(12)
    found[0] = 1.0
    serve, arrive = 1 / 1.75, 0.75 / 1.75
    for _ in range(10):
        after = np.zeros(12)
        for n in range(11):
            for left in range(n + 1):
                after[n + 1 - left] += found[n] * arrive * serve**left
            after[0] += found[n] * serve ** (n + 1)
        found = after
    return [float(found @ np.arange(12)), found[0]]


def waiting_time_check():
    """Spitzer's identity for the maximum of a random walk."""
    k = np.arange(1, 11)
    below = betainc(k, k, 1 / 1.75)
    rule = legendre([0, 5, 15, 30, 60, 120], 60)

    def positive(n: int) -> float:
        # E[(S - A)+] = integral of P(S > t) P(A < t) over t
        return integral(lambda t: gamma.sf(t, n) * gamma.cdf(t, n, scale=1 / 0.75), rule)

    none = np.zeros(11)
    none[0] = 1.0
    for n in range(1, 11):
        none[n] = float(np.sum(below[:n] * none[n - 1 :: -1][:n])) / n
    return [sum(positive(int(n)) / n for n in k), none[10]]


def epidemic_size():
    excess = numpyro.sample("excess", dist.LogNormal(jnp.log(0.5), 0.5))
    reproduction = 1.0 + excess
    size = jax.lax.fori_loop(0, 400, lambda _, z: 1.0 - jnp.exp(-reproduction * z), 1.0)
    return {"most": size > 0.95, "size": size}


def epidemic_size_truth():
    def size(z):
        r = 1 + 0.5 * np.exp(0.5 * z)
        return 1 + np.real(lambertw(-r * np.exp(-r))) / r

    cut = (np.log(2 * (-np.log(0.05) / 0.95 - 1))) / 0.5
    return [norm.sf(cut), integral(lambda z: size(z) * norm.pdf(z), trapezoid(-9, 9))]


def epidemic_size_check():
    # Integrate over the size itself: r = -log(1 - z) / z.
    def excess(z):
        return -np.log1p(-z) / z - 1

    def above(z: float) -> float:
        return float(norm.sf(np.log(2 * excess(z)) / 0.5))

    return [above(0.95), adaptive(above, [1e-9, 0.1, 0.4, 0.8, 0.95, 0.999, 1 - 1e-12])]


def knock_out_call(strike):
    with numpyro.plate("months", 12):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))

    def month(carry, shock):
        log_price, alive = carry
        log_price = log_price + 0.08 * shock - 0.0032
        return (log_price, alive & (log_price > -0.125)), None

    (log_price, alive), _ = jax.lax.scan(month, (0.0, True), z)
    return jnp.where(alive, jnp.maximum(jnp.exp(log_price) - strike, 0.0), 0.0)


def month_density(x):
    return norm.pdf(x, -0.0032, 0.08)


def knock_out_call_truth():
    rule = legendre([-0.125, 0, 0.2, 0.4, 0.8, 1.2, 2.0, 2.5], 40)
    (x, w), density = forward_walk(month_density, 0.0, 12, rule)
    return [float(np.sum(w * density * np.maximum(np.exp(x) - 1, 0)))]


def knock_out_call_check():
    rule = legendre([-0.125, 0, 0.15, 0.3, 0.6, 1.0, 1.6, 2.2], 50)
    return [backward_walk(month_density, lambda x: np.maximum(np.exp(x) - 1, 0), 0.0, 12, rule)]


PROGRAMS = [
    Adversarial(
        "best_variant",
        "order",
        best_variant,
        (CLICKS, VIEWS),
        best_variant_truth,
        best_variant_check,
        "Quadrature in the rate; in the log odds.",
        True,
    ),
    Adversarial(
        "sample_range",
        "order",
        sample_range,
        (),
        sample_range_truth,
        sample_range_check,
        "Classical integrals over the range; studentised range distribution.",
        True,
    ),
    Adversarial(
        "median_of_nine_cauchy",
        "order",
        median_of_nine_cauchy,
        (),
        median_of_nine_cauchy_truth,
        median_of_nine_cauchy_check,
        "Beta distribution of the median's rank; trapezoid after x = sinh(v).",
        True,
    ),
    Adversarial(
        "underdog_wins",
        "order",
        underdog_wins,
        (ABILITY, SPREAD),
        underdog_wins_truth,
        underdog_wins_check,
        "Integral over the underdog's form; over the best of the others.",
    ),
    Adversarial(
        "walk_hits_barrier",
        "loops",
        walk_hits_barrier,
        (),
        walk_hits_barrier_truth,
        walk_hits_barrier_check,
        "Forward density of the surviving walk; backward value function on another grid.",
    ),
    Adversarial(
        "insurer_ruin",
        "loops",
        insurer_ruin,
        (4.0, 1.5),
        insurer_ruin_truth,
        insurer_ruin_check,
        "Chain of Poisson counts; value function by Chebyshev interpolation.",
        True,
    ),
    Adversarial(
        "waiting_time",
        "loops",
        waiting_time,
        (),
        waiting_time_truth,
        waiting_time_check,
        "Chain of the number in the queue; Spitzer's identity.",
    ),
    Adversarial(
        "epidemic_size",
        "loops",
        epidemic_size,
        (),
        epidemic_size_truth,
        epidemic_size_check,
        "Lambert's function; integral of the distribution function of the size.",
        True,
    ),
    Adversarial(
        "knock_out_call",
        "loops",
        knock_out_call,
        (1.0,),
        knock_out_call_truth,
        knock_out_call_check,
        "Forward density of the surviving price; backward value function on another grid.",
        True,
    ),
]
