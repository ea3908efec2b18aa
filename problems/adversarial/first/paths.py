"""Sorted and maximal outputs, and targets or densities that are computed in a loop."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import special, stats

from problems.adversarial.first.integrals import (
    gauss_rule,
    integral,
    normal_log_density,
    normal_tail,
)
from problems.adversarial.program import Adversarial

TRIALS = np.array([400, 400, 400, 400, 400, 400])
SUCCESSES = np.array([31, 44, 38, 52, 47, 29])


def best_arm(trials, successes):
    with numpyro.plate("arms", trials.size):
        rate = numpyro.sample("rate", dist.Beta(1, 1))
        numpyro.sample("successes", dist.Binomial(trials, rate), obs=successes)
    winner = jnp.argmax(rate)
    return {"favourite": winner == 3, "outsider": winner == 0}


def best_arm_truth() -> Iterable[float]:
    a, b = 1 + SUCCESSES, 1 + TRIALS - SUCCESSES
    rule = gauss_rule(np.linspace(0, 0.4, 80))
    others = lambda p, i: np.prod(  # noqa: E731
        [stats.beta.cdf(p, a[j], b[j]) for j in range(6) if j != i], axis=0
    )
    return [
        integral(rule, lambda p, i=i: stats.beta.pdf(p, a[i], b[i]) * others(p, i)) for i in (3, 0)
    ]


def best_arm_check() -> Iterable[float]:
    """On the log-odds scale, by parts: the winner's tail against the growth of the others."""
    a, b = 1 + SUCCESSES, 1 + TRIALS - SUCCESSES
    odds = np.linspace(-6, 0.5, 4001)
    p = special.expit(odds)
    cdf = special.betainc(a[:, None], b[:, None], p)
    log_pdf = a[:, None] * np.log(p) + b[:, None] * np.log1p(-p) - special.betaln(a, b)[:, None]
    growth = np.exp(log_pdf)
    values = []
    for i in (3, 0):
        rest = [j for j in range(6) if j != i]
        slope = sum(growth[j] * np.prod(cdf[[k for k in rest if k != j]], axis=0) for j in rest)
        tail = special.betainc(b[i], a[i], 1 - p)
        values.append(np.sum(slope * tail) * (odds[1] - odds[0]))
    return values


def second_largest(limit):
    z = numpyro.sample("z", dist.Normal(0, 1).expand([30]).to_event(1))
    return jnp.sort(z)[-2] > limit


def second_largest_check() -> Iterable[float]:
    """The density of the second largest of thirty, integrated over the tail."""
    rule = gauss_rule(np.linspace(4, 14, 12))
    return [
        integral(
            rule,
            lambda x: (
                870 * np.exp(normal_log_density(x)) * stats.norm.sf(x) * stats.norm.cdf(x) ** 28
            ),
        )
    ]


SCORES = np.array([1.4, 1.1, 0.2, -0.5])


def regret(scores):
    with numpyro.plate("options", scores.size):
        value = numpyro.sample("value", dist.Normal(0, 1))
        numpyro.sample("scores", dist.Normal(value, 0.5), obs=scores)
    return jnp.max(value) - value[0]


REGRET_MEAN, REGRET_SD = 0.8 * SCORES, np.sqrt(0.2)


def regret_truth() -> Iterable[float]:
    """E[max] as the integral of the distribution function of the maximum."""
    product = lambda x: np.prod(stats.norm.cdf(x, REGRET_MEAN[:, None], REGRET_SD), axis=0)  # noqa: E731
    above = integral(gauss_rule(np.linspace(0, 9, 40)), lambda x: 1 - product(x))
    below = integral(gauss_rule(np.linspace(-9, 0, 40)), product)
    return [above - below - REGRET_MEAN[0]]


def regret_check() -> Iterable[float]:
    rule = gauss_rule(np.linspace(-8, 9, 60))
    total = 0.0
    for i in range(4):
        rest = np.delete(REGRET_MEAN, i)[:, None]
        total += integral(
            rule,
            lambda x, i=i, rest=rest: (
                x
                * np.exp(normal_log_density(x, REGRET_MEAN[i], REGRET_SD))
                * np.prod(special.ndtr((x - rest) / REGRET_SD), axis=0)
            ),
        )
    return [total - REGRET_MEAN[0]]


def third_pump(failures, hours):
    rate = numpyro.sample("rate", dist.Gamma(3.0, 1000.0))
    numpyro.sample("failures", dist.Poisson(rate * hours), obs=failures)
    with numpyro.plate("pumps", 12):
        life = numpyro.sample("life", dist.Exponential(rate))
    return jnp.sort(life)[2] < 24.0


def third_pump_truth() -> Iterable[float]:
    rule = gauss_rule(np.linspace(0, 0.03, 60))
    return [
        integral(
            rule,
            lambda r: (
                stats.gamma.pdf(r, 5, scale=1 / 2500) * stats.binom.sf(2, 12, -np.expm1(-24 * r))
            ),
        )
    ]


def third_pump_check() -> Iterable[float]:
    """Expand the binomial; every term is a Laplace transform of the gamma posterior."""
    total = 0.0
    for failed in range(3):
        for k in range(failed + 1):
            sign = special.comb(12, failed) * special.comb(failed, k) * (-1) ** k
            total += sign * (2500 / (2500 + 24 * (12 - failed + k))) ** 5
    return [1 - total]


def barrier_crossed(barrier):
    steps = numpyro.sample("steps", dist.Normal(0, 1).expand([16]).to_event(1))

    def move(state, step):
        position, highest = state
        position = position + step
        return (position, jnp.maximum(highest, position)), None

    (_, highest), _ = jax.lax.scan(move, (0.0, 0.0), steps)
    return highest > barrier


def barrier_grid(panels):
    x, w = gauss_rule(np.linspace(-30, 20, panels + 1), 12)
    return x, w, np.exp(normal_log_density(x[:, None] - x))


def barrier_truth() -> Iterable[float]:
    """Backwards: the probability of crossing within the remaining steps."""
    x, w, kernel = barrier_grid(50)
    crossing = stats.norm.sf(20 - x)
    for _ in range(14):
        crossing = stats.norm.sf(20 - x) + kernel @ (w * crossing)
    return [stats.norm.sf(20) + float(np.exp(normal_log_density(x)) @ (w * crossing))]


def barrier_check() -> Iterable[float]:
    """Forwards: the density of the walks that have not crossed, and what leaves at each step."""
    x, w, kernel = barrier_grid(37)
    density, total = np.exp(normal_log_density(x)), stats.norm.sf(20)
    for _ in range(15):
        total += float((w * density) @ stats.norm.sf(20 - x))
        density = kernel @ (w * density)
    return [total]


def ruin(surplus, premium):
    claims = numpyro.sample("claims", dist.Exponential(1.0).expand([12]).to_event(1))

    def year(i, state):
        money, ruined = state
        money = money + premium - claims[i]
        return money, ruined | (money < 0)

    return jax.lax.fori_loop(0, 12, year, (jnp.asarray(surplus, claims.dtype), False))[1]


def ruin_truth() -> Iterable[float]:
    """Ballot-type formula: the volume of ordered claims below a line is an Abel polynomial."""
    k = np.arange(1, 13)
    line = 18 + 1.2 * k
    logs = -line + np.log(19.2) + (k - 2) * np.log(line) - special.gammaln(k)
    return [float(np.sum(np.exp(logs)))]


def ruin_check() -> Iterable[float]:
    """Recursion over years: exp(-surplus) times a polynomial in the surplus."""
    shift = np.polynomial.Polynomial([1.2, 1.0])
    factor = np.polynomial.Polynomial([0.0])
    for _ in range(12):
        factor = np.exp(-1.2) * (1 + factor.integ()(shift))
    return [np.exp(-18.0) * factor(18.0)]


def newton_deflection(limit):
    load = numpyro.sample("load", dist.Normal(0, 2))

    def newton(_, bend):
        return bend - (bend**3 + bend - load) / (3 * bend**2 + 1)

    return jax.lax.fori_loop(0, 60, newton, load) > limit


WEEKS = 8


def inventory_cost(demand):
    with numpyro.plate("weeks", WEEKS):
        sold = numpyro.sample("sold", dist.Poisson(demand))

    def week(stock, wanted):
        left = jnp.maximum(stock - wanted, 0)
        cost = 2.0 * left + 50.0 * jnp.maximum(wanted - stock, 0)
        return jnp.minimum(left + 4, 15), cost

    return jax.lax.scan(week, jnp.asarray(10, sold.dtype), sold)[1].sum()


def inventory_tables():
    wanted = np.arange(60)
    chance = stats.poisson.pmf(wanted, 4.0)
    stock = np.arange(16)[:, None]
    left = np.maximum(stock - wanted, 0)
    cost = (2.0 * left + 50.0 * np.maximum(wanted - stock, 0)) @ chance
    move = np.zeros((16, 16))
    for start in range(16):
        np.add.at(move[start], np.minimum(left[start] + 4, 15), chance)
    return move, cost


def inventory_truth() -> Iterable[float]:
    move, cost = inventory_tables()
    state, total = np.eye(16)[10], 0.0
    for _ in range(WEEKS):
        total += state @ cost
        state = state @ move
    return [total]


def inventory_check() -> Iterable[float]:
    """The value function, week by week from the end, with shortages in closed form."""
    value = np.zeros(16)
    for _ in range(WEEKS):
        new = np.zeros(16)
        for stock in range(16):
            d = np.arange(stock + 1)
            p, beyond = stats.poisson.pmf(d, 4.0), stats.poisson.sf(stock, 4.0)
            short = 4 * stats.poisson.sf(stock - 1, 4.0) - stock * beyond
            after = np.minimum(stock - d + 4, 15)
            new[stock] = p @ (2.0 * (stock - d) + value[after]) + 50 * short + beyond * value[4]
        value = new
    return [value[10]]


def ten_years(limit):
    shocks = numpyro.sample("shocks", dist.Normal(0, 1).expand([10]).to_event(1))

    def year(total, shock):
        return total + jnp.where(shock > limit, 1e8, 10 + shock), None

    return jax.lax.scan(year, 0.0, shocks)[0]


def ten_years_truth() -> Iterable[float]:
    everyday = 10 * stats.norm.cdf(4.8) - stats.norm.pdf(4.8)
    return [10 * (everyday + 1e8 * stats.norm.sf(4.8))]


def ten_years_check() -> Iterable[float]:
    everyday = integral(
        gauss_rule(np.linspace(-12, 4.8, 30)), lambda x: (10 + x) * np.exp(normal_log_density(x))
    )
    return [10 * (everyday + 1e8 * normal_tail(4.8))]


PROGRAMS = [
    Adversarial(
        "best_of_six_arms",
        "order",
        best_arm,
        (TRIALS, SUCCESSES),
        best_arm_truth,
        best_arm_check,
        "Quadrature of density times distribution functions; by parts on the log-odds scale.",
        is_easy=True,
    ),
    Adversarial(
        "second_largest_of_thirty",
        "order",
        second_largest,
        (4.0,),
        lambda: [stats.binom.sf(1, 30, stats.norm.sf(4))],
        second_largest_check,
        "A binomial tail; the density of the order statistic.",
    ),
    Adversarial(
        "regret_of_the_leading_option",
        "order",
        regret,
        (SCORES,),
        regret_truth,
        regret_check,
        "The integral of the distribution function of the maximum; of its density times x.",
        is_easy=True,
    ),
    Adversarial(
        "third_pump_fails_within_a_day",
        "order",
        third_pump,
        (2, 1500.0),
        third_pump_truth,
        third_pump_check,
        "Quadrature over the rate; Laplace transforms of the gamma posterior.",
        is_easy=True,
    ),
    Adversarial(
        "random_walk_over_a_barrier",
        "loops",
        barrier_crossed,
        (20.0,),
        barrier_truth,
        barrier_check,
        "Backward recursion of the crossing probability; forward recursion of the density.",
    ),
    Adversarial(
        "ruin_within_twelve_years",
        "loops",
        ruin,
        (18.0, 1.2),
        ruin_truth,
        ruin_check,
        "Abel polynomials of the claim times; a polynomial recursion over the years.",
    ),
    Adversarial(
        "deflection_by_newton",
        "loops",
        newton_deflection,
        (2.0,),
        lambda: [stats.norm.sf(10, 0, 2)],
        lambda: [normal_tail(10, 0, 2)],
        "The root passes 2 exactly when the load passes 10; the tail by quadrature.",
    ),
    Adversarial(
        "inventory_cost_of_eight_weeks",
        "loops",
        inventory_cost,
        (4.0,),
        inventory_truth,
        inventory_check,
        "The forward distribution of the stock; the backward value function.",
        is_easy=True,
    ),
    Adversarial(
        "ten_years_of_operation",
        "loops",
        ten_years,
        (4.8,),
        ten_years_truth,
        ten_years_check,
        "Partial normal moments; the same by quadrature.",
    ),
]
