"""Heavy tails, ratios and exponentials; mass at the edge of a support."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import beta as beta_function
from scipy.special import betainc, erfcx, gammaln, ive
from scipy.stats import beta, gamma

from problems.adversarial.program import Adversarial
from problems.adversarial.second.integrals import (
    adaptive,
    integral,
    legendre,
    means,
    nan,
    product,
    trapezoid,
)


def student_power():
    x = numpyro.sample("x", dist.StudentT(3.0, 0.0, 1.0))
    return jnp.abs(x) ** 2.5


def student_power_truth():
    logs = 1.25 * np.log(3) + gammaln(1.75) + gammaln(0.25) - gammaln(0.5) - gammaln(1.5)
    return [np.exp(logs)]


def student_power_check():
    def integrand(u):
        return 2 * np.exp(3.5 * u) * (1 + np.exp(2 * u) / 3) ** -2

    scale = np.exp(gammaln(2) - gammaln(1.5)) / np.sqrt(3 * np.pi)
    return [scale * integral(integrand, trapezoid(-15, 80, 4001))]


def student_growth():
    """The mean of the exponential of a Student-t variable does not exist."""
    rate = numpyro.sample("rate", dist.StudentT(5.0, 0.02, 0.1))
    return 1000.0 * jnp.exp(rate)


DOSE = np.array([-1.5, -1.0, -0.5, 0.5, 1.0, 1.5])
RESPONSE = np.array([-1.0, 0.25, -0.75, 0.5, 0.0, 1.5])


def median_dose(dose, response):
    """The ratio of two regression coefficients: no mean, like every ratio of normals."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    with numpyro.plate("doses", dose.size):
        numpyro.sample("response", dist.Normal(intercept + slope * dose, 0.8), obs=response)
    return -intercept / slope


def rate_ratio(cases, years):
    """One event in the control arm: a ratio with a mean, but no variance."""
    with numpyro.plate("arms", 2):
        rate = numpyro.sample("rate", dist.Gamma(0.5, 0.125))
        numpyro.sample("cases", dist.Poisson(rate * years), obs=cases)
    return rate[0] / rate[1]


def rate_ratio_check():
    def moment(shape: float, rate: float, power: float) -> float:
        def density(u):
            return np.exp(shape * u - rate * np.exp(u))

        # The integrand vanishes like exp((shape - 1) u) on the left.
        rule = trapezoid(-90, 6, 9601)
        return integral(lambda u: np.exp(power * u) * density(u), rule) / integral(density, rule)

    return [moment(6.5, 100.125, 1) * moment(1.5, 50.125, -1)]


def pareto_excess(attachment):
    loss = numpyro.sample("loss", dist.Pareto(1.0, 1.25))
    return jnp.maximum(loss - attachment, 0.0)


def pareto_excess_check():
    def integrand(u):
        return np.exp(-0.25 * u)

    return [adaptive(integrand, np.log(1e4) + np.array([0, 5, 20, 60, 200]))]


def odds_all_successes(successes, trials):
    """All succeeded: under the Jeffreys prior the mean odds are infinite."""
    p = numpyro.sample("p", dist.Beta(0.5, 0.5))
    numpyro.sample("successes", dist.Binomial(trials, p), obs=successes)
    return p / (1.0 - p)


GROUPS = np.array([6.0, -3.0])


def between_group_variance(y):
    spread = numpyro.sample("spread", dist.HalfCauchy(5.0))
    with numpyro.plate("groups", y.size):
        numpyro.sample("y", dist.Normal(0.0, jnp.sqrt(4.0 + spread**2)), obs=y)
    return spread**2


def group_log_likelihood(spread):
    variance = 4 + spread**2
    return -np.log(variance) - 22.5 / variance


def between_group_variance_truth():
    def log_density(u):
        s = np.exp(u)
        return u - np.log1p(s**2 / 25) + group_log_likelihood(s)

    return means(log_density, [lambda u: np.exp(2 * u)], trapezoid(-40, 60, 8001))


def between_group_variance_check():
    def likelihood(angle):
        return np.exp(group_log_likelihood(5 * np.tan(angle)))

    rule = legendre([0, 0.5, 1.0, 1.4, np.pi / 2], 200)
    top = integral(lambda angle: (5 * np.tan(angle)) ** 2 * likelihood(angle), rule)
    return [top / integral(likelihood, rule)]


def no_events(events, patients):
    p = numpyro.sample("p", dist.Beta(0.5, 0.5))
    numpyro.sample("events", dist.Binomial(patients, p), obs=events)
    return {"mean": p, "unsafe": p > 0.02}


def no_events_check():
    # p = s^2 removes the singularity at 0.
    s, w = legendre([0, 0.02, 0.05, 0.1, np.sqrt(0.02), 0.2, 0.4], 60)
    mass = w * (1 - s**2) ** 299.5
    return [mass @ s**2 / mass.sum(), mass[s**2 > 0.02].sum() / mass.sum()]


def vaccine_efficacy(cases, people):
    with numpyro.plate("arms", 2):
        risk = numpyro.sample("risk", dist.Beta(1.0, 1.0))
        numpyro.sample("cases", dist.Binomial(people, risk), obs=cases)
    efficacy = 1.0 - risk[0] / risk[1]
    return {"efficacy": efficacy, "poor": efficacy < 0.5, "strong": efficacy > 0.95}


def vaccine_efficacy_truth():
    control = legendre([1e-9, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1], 80)

    def below(share: float) -> float:
        def integrand(q):
            return beta.pdf(q, 41, 1961) * betainc(3, 1999, share * q)

        return integral(integrand, control)

    def above(share: float) -> float:
        def integrand(q):
            return beta.pdf(q, 41, 1961) * beta.sf(share * q, 3, 1999)

        return integral(integrand, control)

    return [1 - 3 / 2002 * 2001 / 40, above(0.5), below(0.05)]


def vaccine_efficacy_check():
    p, w = legendre([0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05], 80)
    mass = w * beta.pdf(p, 3, 1999)
    ratio = float(mass @ p) * beta_function(40, 1961) / beta_function(41, 1961)
    poor, strong = mass @ beta.cdf(p / 0.5, 41, 1961), mass @ beta.sf(p / 0.05, 41, 1961)
    return [1 - ratio, float(poor), float(strong)]


def on_off_counting(on, off):
    """A signal above a background that was measured for three times as long."""
    signal = numpyro.sample("signal", dist.Exponential(0.02))
    background = numpyro.sample("background", dist.Gamma(1.0, 0.1))
    numpyro.sample("off", dist.Poisson(3.0 * background), obs=off)
    numpyro.sample("on", dist.Poisson(signal + background), obs=on)
    return {"large": signal > 15.0, "mean": signal, "none": signal < 0.01}


def on_off_counting_truth():
    k = np.arange(8)
    logs = gammaln(8) - gammaln(k + 1) - gammaln(8 - k)
    logs += gammaln(k + 1) - (k + 1) * np.log(1.02)
    logs += gammaln(26 - k) - (26 - k) * np.log(4.1)
    mass = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    signal = gamma(k + 1, scale=1 / 1.02)
    return [mass @ signal.sf(15), mass @ signal.mean(), mass @ signal.cdf(0.01)]


def on_off_counting_check():
    def log_density(s, b):
        return -1.02 * s - 4.1 * b + 18 * np.log(b) + 7 * np.log(s + b)

    rule = product(legendre([0, 0.01, 2, 5, 9, 15, 25, 60], 30), legendre([1e-6, 3, 6, 10, 20], 40))
    targets = [lambda s, _: s > 15, lambda s, _: s, lambda s, _: s < 0.01]
    return means(log_density, targets, rule)


def share_above_one(measured):
    """A share must be below 1, but the measurement says 1.8."""
    share = numpyro.sample("share", dist.Uniform(0.0, 1.0))
    numpyro.sample("measured", dist.Normal(share, 0.05), obs=measured)
    return 1.0 - share


def share_above_one_truth():
    return [0.05 * (np.sqrt(2 / np.pi) / erfcx(16 / np.sqrt(2)) - 16)]


def share_above_one_check():
    def density(t: float) -> float:
        return np.exp(-0.5 * t * t / 0.0025 - 320 * t)

    pieces = [0, 0.003, 0.01, 0.03, 0.1, 0.3]
    return [adaptive(lambda t: t * density(t), pieces) / adaptive(density, pieces)]


def wind_direction():
    """Most of the mass is near the cut at 180 degrees, on both sides of it."""
    direction = numpyro.sample("direction", dist.VonMises(3.0, 4.0))
    return {"east": jnp.abs(direction) < 0.5, "negative": direction < 0.0}


def wind_direction_truth():
    k = np.arange(1, 60)
    ratio = ive(k, 4.0) / ive(0, 4.0)

    def between(low: float, high: float) -> float:
        waves = (np.sin(k * (high - 3)) - np.sin(k * (low - 3))) / k
        return (high - low) / (2 * np.pi) + float(np.sum(ratio * waves)) / np.pi

    return [between(-0.5, 0.5), between(-np.pi, 0.0)]


def wind_direction_check():
    def density(x: float) -> float:
        return np.exp(4 * (np.cos(x - 3) - 1)) / (2 * np.pi * ive(0, 4.0))

    return [adaptive(density, [-0.5, 0, 0.5]), adaptive(density, [-np.pi, -2, 0])]


PROGRAMS = [
    Adversarial(
        "student_power",
        "tails",
        student_power,
        (),
        student_power_truth,
        student_power_check,
        "Gamma functions; trapezoid in the logarithm.",
        True,
    ),
    Adversarial(
        "student_growth",
        "tails",
        student_growth,
        (),
        nan,
        nan,
        "The integrand grows exponentially and the density falls like a power.",
    ),
    Adversarial(
        "median_dose",
        "tails",
        median_dose,
        (DOSE, RESPONSE),
        nan,
        nan,
        "The slope has a positive density at 0, so its reciprocal has no mean.",
    ),
    Adversarial(
        "rate_ratio",
        "tails",
        rate_ratio,
        (np.array([6, 1]), np.array([100.0, 50.0])),
        lambda: [6.5 / 100.125 * 50.125 / 0.5],
        rate_ratio_check,
        "Gamma and inverse-gamma means; trapezoid in the logarithms.",
        True,
    ),
    Adversarial(
        "pareto_excess",
        "tails",
        pareto_excess,
        (1e4,),
        lambda: [1e4**-0.25 / 0.25],
        pareto_excess_check,
        "Closed form; adaptive quadrature of the survival function in the logarithm.",
        True,
    ),
    Adversarial(
        "odds_all_successes",
        "tails",
        odds_all_successes,
        (7, 7),
        nan,
        nan,
        "The posterior is Beta(7.5, 0.5), whose odds have no mean.",
    ),
    Adversarial(
        "between_group_variance",
        "tails",
        between_group_variance,
        (GROUPS,),
        between_group_variance_truth,
        between_group_variance_check,
        "Trapezoid in the logarithm; Gauss-Legendre in the arctangent.",
    ),
    Adversarial(
        "no_events",
        "edges",
        no_events,
        (0, 300),
        lambda: [0.5 / 301, beta.sf(0.02, 0.5, 300.5)],
        no_events_check,
        "Beta posterior; quadrature in the square root.",
        True,
    ),
    Adversarial(
        "vaccine_efficacy",
        "edges",
        vaccine_efficacy,
        (np.array([2, 40]), 2000),
        vaccine_efficacy_truth,
        vaccine_efficacy_check,
        "Beta posteriors, integrated over the control arm; over the vaccine arm.",
        True,
    ),
    Adversarial(
        "on_off_counting",
        "edges",
        on_off_counting,
        (7, 18),
        on_off_counting_truth,
        on_off_counting_check,
        "Binomial expansion into gamma integrals; two-dimensional Gauss-Legendre.",
        True,
    ),
    Adversarial(
        "share_above_one",
        "edges",
        share_above_one,
        (1.8,),
        share_above_one_truth,
        share_above_one_check,
        "Mean excess of a normal tail; adaptive quadrature.",
        True,
    ),
    Adversarial(
        "wind_direction",
        "edges",
        wind_direction,
        (),
        wind_direction_truth,
        wind_direction_check,
        "Fourier series of the von Mises distribution; adaptive quadrature.",
        True,
    ),
]
