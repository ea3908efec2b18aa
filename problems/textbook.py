"""Small models from textbooks: a tail, counts, branches, constrained supports, a hierarchy.

Truths are closed forms, or one-dimensional integrals by adaptive quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import special, stats

from problems.problem import Problem, normal_part, problem_of, quad

# One dimension -----------------------------------------------------------------------------------


def normal_tail() -> Any:
    """A rare event with no data."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    return x > 4.5


def _normal_tail() -> Problem:
    return problem_of(
        "normal_tail",
        normal_tail,
        (),
        plus=float(stats.norm.sf(4.5)),
        minus=0.0,
        log_z2=0.0,
        how="closed form: the normal tail",
        tags="continuous rare event",
    )


def horse_kicks(y: np.ndarray) -> Any:
    """Deaths by horse kick: the probability of eight or more in a new corps-year."""
    lam = numpyro.sample("lam", dist.Gamma(1.0, 1.0))
    with numpyro.plate("corps_years", len(y)):
        numpyro.sample("y", dist.Poisson(lam), obs=y)
    # P(Poisson(lam) >= 8); 1 minus the sum of the pmf would lose all digits at lam = 0.6.
    return jax.scipy.special.gammainc(8.0, lam)


def _horse_kicks() -> Problem:
    y = np.repeat(np.arange(5), [109, 65, 22, 3, 1])
    shape, rate = 1.0 + y.sum(), 1.0 + len(y)
    log_z2 = special.gammaln(shape) - shape * math.log(rate) - special.gammaln(y + 1.0).sum()
    return problem_of(
        "horse_kicks",
        horse_kicks,
        (y,),
        plus=float(stats.nbinom.sf(7, shape, rate / (rate + 1))),
        minus=0.0,
        log_z2=float(log_z2),
        how="closed form: Gamma(123, 201) posterior, negative binomial tail",
        tags="continuous half-line rare gradient",
    )


# Discrete ----------------------------------------------------------------------------------------


def drawn_kicks(y: np.ndarray) -> Any:
    """Deaths by horse kick: a new corps-year's count is drawn, and asked how large it is."""
    lam = numpyro.sample("lam", dist.Gamma(1.0, 1.0))
    with numpyro.plate("corps_years", len(y)):
        numpyro.sample("y", dist.Poisson(lam), obs=y)
    new = numpyro.sample("new", dist.Poisson(lam))
    return new >= 4, new >= 8, new >= 12


def _drawn_kicks() -> Problem:
    smooth = _horse_kicks()
    (y,) = smooth.args
    shape, rate = 1.0 + y.sum(), 1.0 + len(y)
    tails = tuple(float(stats.nbinom.sf(k - 1, shape, rate / (rate + 1))) for k in (4, 8, 12))
    return problem_of(
        "drawn_kicks",
        drawn_kicks,
        (y,),
        plus=tails,
        minus=(0.0, 0.0, 0.0),
        log_z2=smooth.log_z2,
        how="closed form: Gamma(123, 201) posterior, negative binomial tails",
        tags="discrete half-line rare event multiple",
    )


def _branch(y: float) -> tuple[Any, Any]:
    m = numpyro.sample("m", dist.Bernoulli(0.5))
    a = numpyro.sample("a", dist.Normal(jnp.where(m == 1, 1.0, 0.0), 1.0))
    numpyro.sample("y", dist.Normal(a, 1.0), obs=y)
    return m, a


def branching(y: float) -> Any:
    """The location under one of two branches."""
    return _branch(y)[1]


def branching_choice(y: float) -> Any:
    """Which of two branches was taken, as an integer."""
    return _branch(y)[0]


def _branching() -> list[Problem]:
    y, sd = 0.2, math.sqrt(0.5)
    joint = [0.5 * float(stats.norm.pdf(y, m, math.sqrt(2))) for m in (0, 1)]
    z2 = sum(joint)
    means = [(m + y) / 2 for m in (0, 1)]
    how = "closed form: two branches, each with posterior N((m + y)/2, 1/2)"
    return [
        problem_of(
            "branching",
            branching,
            (y,),
            plus=sum(w * normal_part(1, m, sd) for w, m in zip(joint, means, strict=True)) / z2,
            minus=sum(w * normal_part(1, -m, sd) for w, m in zip(joint, means, strict=True)) / z2,
            log_z2=math.log(z2),
            how=how,
            tags="discrete signed",
        ),
        problem_of(
            "branching_choice",
            branching_choice,
            (y,),
            plus=joint[1] / z2,
            minus=0.0,
            log_z2=math.log(z2),
            how=how,
            tags="discrete event",
        ),
    ]


# Constrained supports ----------------------------------------------------------------------------


def bounded(y: int) -> Any:
    """A probability against a threshold."""
    p = numpyro.sample("p", dist.Beta(2.0, 5.0))
    numpyro.sample("y", dist.Binomial(10, p), obs=y)
    return p - 0.45


def _bounded() -> Problem:
    y, c = 4, 0.45
    a, b = 2.0 + y, 5.0 + 10 - y
    mean = a / (a + b)
    upper, lower = stats.beta.sf, stats.beta.cdf
    log_z2 = math.log(math.comb(10, y)) + special.betaln(a, b) - special.betaln(2, 5)
    return problem_of(
        "bounded",
        bounded,
        (y,),
        plus=float(mean * upper(c, a + 1, b) - c * upper(c, a, b)),
        minus=float(c * lower(c, a, b) - mean * lower(c, a + 1, b)),
        value=mean - c,
        log_z2=float(log_z2),
        how="closed form: Beta(6, 11) posterior, incomplete beta functions",
        tags="continuous bounded signed gradient",
    )


def half_line(y: np.ndarray) -> Any:
    """The logarithm of a Poisson rate against a threshold."""
    lam = numpyro.sample("lam", dist.Gamma(2.0, 1.0))
    with numpyro.plate("counts", len(y)):
        numpyro.sample("y", dist.Poisson(lam), obs=y)
    return jnp.log(lam) - 0.5


def _half_line() -> Problem:
    y = np.array([3, 1, 4])
    a, b = 2.0 + y.sum(), 1.0 + len(y)
    cut = math.exp(0.5)

    def integrand(lam: float) -> float:
        return abs(math.log(lam) - 0.5) * float(stats.gamma.pdf(lam, a, scale=1 / b))

    log_z2 = special.gammaln(a) - a * math.log(b) - special.gammaln(y + 1.0).sum()
    return problem_of(
        "half_line",
        half_line,
        (y,),
        plus=quad(integrand, cut, 20.0, 2.5, 4.0, 7.0),
        minus=quad(integrand, 1e-9, cut, 0.5, 1.0),
        value=float(special.digamma(a) - math.log(b) - 0.5),
        log_z2=float(log_z2),
        how="closed form: Gamma(10, 4) posterior, digamma; parts by adaptive quadrature",
        tags="continuous half-line signed gradient",
    )


def simplex(y: np.ndarray) -> Any:
    """One share against the square of another."""
    p = numpyro.sample("p", dist.Dirichlet(np.array([2.0, 1.0, 3.0])))
    numpyro.sample("y", dist.Multinomial(total_count=int(y.sum()), probs=p), obs=y)
    return p[0] - p[2] ** 2


def _simplex() -> Problem:
    y = np.array([2, 1, 2])
    prior = np.array([2.0, 1.0, 3.0])
    a = prior + y
    total = a.sum()

    def part(r: float, sign: int) -> float:
        # r = p[2] and t = p[0] / (1 - r) are independent beta variables; f = (1 - r) t - r^2.
        cut = min(r**2 / (1 - r), 1.0)
        side = stats.beta.sf if sign > 0 else stats.beta.cdf
        first = a[0] / (a[0] + a[1]) * side(cut, a[0] + 1, a[1])
        conditional = (1 - r) * first - r**2 * side(cut, a[0], a[1])
        return sign * float(conditional * stats.beta.pdf(r, a[2], a[0] + a[1]))

    golden = (math.sqrt(5) - 1) / 2  # beyond this p[2] f is negative whatever t is
    log_choose = special.gammaln(1.0 + y.sum()) - special.gammaln(1.0 + y).sum()
    log_evidence = special.gammaln(a).sum() - special.gammaln(total)
    log_prior = special.gammaln(prior).sum() - special.gammaln(prior.sum())
    return problem_of(
        "simplex",
        simplex,
        (y,),
        plus=quad(lambda r: part(r, 1), 0.0, golden, 0.3),
        minus=quad(lambda r: part(r, -1), 0.0, 1 - 1e-9, 0.3, golden),
        value=float(a[0] / total - a[2] * (a[2] + 1) / (total * (total + 1))),
        log_z2=float(log_choose + log_evidence - log_prior),
        how="closed form: Dirichlet(4, 2, 5) posterior; parts by incomplete beta and quadrature",
        tags="continuous simplex vector signed gradient",
    )


def dependent(y: float) -> Any:
    """A site whose support ends at another site's value."""
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    b = numpyro.sample("b", dist.Uniform(0.0, a))
    numpyro.sample("y", dist.Normal(a * b, 1.0), obs=y)
    return 3.0 * b - a


def _dependent() -> Problem:
    y, root3 = 1.5, math.sqrt(3)

    # With s^2 = ab in place of b, a runs over (s, inf) with density exp(-a) / a, and
    # f = 3 s^2 / a - a changes sign at a = sqrt(3) s: exponential integrals.
    def weigh(inner: Callable[[float], float]) -> float:
        return quad(lambda s: 2 * s * float(stats.norm.pdf(y - s**2) * inner(s)), 0.0, 4.0, 1.0)

    def above(s: float) -> float:
        return 3 * s / root3 * float(special.expn(2, root3 * s)) - math.exp(-root3 * s)

    def total(s: float) -> float:
        return 3 * s * float(special.expn(2, s)) - math.exp(-s)

    z2 = weigh(special.exp1)
    return problem_of(
        "dependent",
        dependent,
        (y,),
        plus=weigh(lambda s: total(s) - above(s)) / z2,
        minus=-weigh(above) / z2,
        log_z2=math.log(z2),
        how="a integrated in closed form, ab by adaptive quadrature",
        tags="continuous half-line bounded dependent signed gradient",
    )


# Several dimensions ------------------------------------------------------------------------------


def hierarchical(y: np.ndarray) -> Any:
    """A scalar site and a vector site in a plate."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("groups", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)
    return theta[2] - 0.5


def _hierarchical() -> Problem:
    y = np.array([1.5, -0.5, 2.0])
    prior = 4.0 * np.ones((3, 3)) + np.eye(3)
    marginal = prior + np.eye(3)
    mean = float((prior @ np.linalg.solve(marginal, y))[2]) - 0.5
    sd = math.sqrt((prior - prior @ np.linalg.solve(marginal, prior))[2, 2])
    return problem_of(
        "hierarchical",
        hierarchical,
        (y,),
        plus=normal_part(1, mean, sd),
        minus=normal_part(1, -mean, sd),
        value=mean,
        log_z2=float(stats.multivariate_normal.logpdf(y, np.zeros(3), marginal)),
        how="closed form: linear and Gaussian",
        tags="continuous vector signed gradient",
    )


def problems() -> list[Problem]:
    """All of this module's, in the order of the table."""
    return [
        _normal_tail(),
        _horse_kicks(),
        _drawn_kicks(),
        *_branching(),
        _bounded(),
        _half_line(),
        _simplex(),
        _dependent(),
        _hierarchical(),
    ]


# Expectations that do not exist ------------------------------------------------------------------


def pareto_mean() -> Any:
    """Infinite: the tail index is 0.9."""
    return numpyro.sample("x", dist.Pareto(1.0, 0.9))


def cauchy_mean() -> Any:
    """Undefined: both parts are infinite."""
    return numpyro.sample("x", dist.Cauchy(0.0, 1.0))
