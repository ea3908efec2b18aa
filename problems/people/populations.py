"""Lifetimes, animals that are seen or not, counts, mixtures and covariances."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln, logsumexp
from numpyro.distributions import constraints, transforms

from problems.people.model import PeopleModel

# Weeks of remission of leukaemia, 6-MP and control (Gehan 1965); whether the end was seen.
_text = (
    "6 6 6 6 7 9 10 10 11 13 16 17 19 20 22 23 25 32 32 34 35 1 1 2 2 3 4 4 5 5 8 8 8 8 11 11 "
    "12 12 15 17 22 23"
)
WEEKS = np.array(_text.split(), dtype=float)
ENDED = np.array([1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1] + [0] * 5 + [1] * 21)
DRUG = np.repeat(np.array([1, 0]), 21)


def weibull_survival(weeks: Any, ended: Any, drug: Any) -> Any:
    """Weibull times, censored; the shape, and the drug being of no use."""
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    effect = numpyro.sample("effect", dist.Normal(0.0, 10.0))
    log_scale = intercept + effect * drug
    z = shape * (jnp.log(weeks) - log_scale)
    log_hazard = jnp.log(shape) - jnp.log(weeks) + z
    numpyro.factor("weeks", jnp.sum(ended * log_hazard - jnp.exp(z)))
    return jnp.stack([shape, 1.0 * (effect < 0.6), 1.0 * (effect < -0.1)])


def exponential_survival(weeks: Any, ended: Any, drug: Any) -> Any:
    """Constant hazards; the ratio of the mean times, and it being very large."""
    with numpyro.plate("arms", 2):
        rate = numpyro.sample("rate", dist.Gamma(0.01, 0.01))
    hazard = rate[drug]
    with numpyro.plate("patients", weeks.shape[0]):
        law = dist.RightCensoredDistribution(dist.Exponential(hazard), censored=1 - ended)
        numpyro.sample("weeks", law, obs=weeks)
    ratio = rate[0] / rate[1]
    return jnp.stack([ratio, 1.0 * (ratio > 14.0), 1.0 * (ratio > 50.0)])


_rng = np.random.default_rng(301)
CLINIC = np.repeat(np.arange(10), 6)
AGE = _rng.normal(size=60)
_time = np.exp(1.0 - 0.4 * AGE + (0.4 * _rng.normal(size=10))[CLINIC] + 0.6 * _rng.normal(size=60))
DEATH_TIME, DEATH_SEEN = np.minimum(_time, 5.0), (_time < 5.0).astype(int)


def frailty(clinic: Any, age: Any, time: Any, seen: Any) -> Any:
    """Log-normal lifetimes with clinics; the effect of age, and a clinic being very good."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    between = numpyro.sample("between", dist.HalfCauchy(1.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    with numpyro.plate("clinics", 10):
        effect = numpyro.sample("effect", dist.Normal(0.0, between))
    z = (jnp.log(time) - intercept - slope * age - effect[clinic]) / sigma
    log_density = jax.scipy.stats.norm.logpdf(z) - jnp.log(sigma)
    log_survival = jax.scipy.stats.norm.logcdf(-z)
    numpyro.factor("time", jnp.sum(jnp.where(seen == 1, log_density, log_survival)))
    return jnp.stack([slope, 1.0 * (effect[4] > 0.8), 1.0 * (effect[4] > 2.0)])


_rng = np.random.default_rng(302)
FOREST = _rng.normal(size=50)
_occupied = _rng.uniform(size=50) < 1 / (1 + np.exp(-(0.2 + 1.0 * FOREST)))
SEEN = _rng.binomial(4, 0.45 * _occupied)


def occupancy(forest: Any, seen: Any) -> Any:
    """Sites that are occupied or not, four visits; the detection, and the slope being large."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.5))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.5))
    detection = numpyro.sample("detection", dist.Uniform(0.0, 1.0))
    logits = intercept + slope * forest
    log_present = jax.nn.log_sigmoid(logits) + dist.Binomial(4, probs=detection).log_prob(seen)
    log_absent = jnp.where(seen == 0, jax.nn.log_sigmoid(-logits), -jnp.inf)
    numpyro.factor("seen", jnp.sum(jnp.logaddexp(log_present, log_absent)))
    return jnp.stack([detection, 1.0 * (slope > 2.5), 1.0 * (slope > 6.0)])


_rng = np.random.default_rng(303)


def _histories(num_animals: int, num_years: int, phi: float, p: float) -> np.ndarray:
    rows = np.zeros((num_animals, num_years), dtype=int)
    for row in rows:
        first = _rng.integers(0, num_years - 1)
        row[first], alive = 1, True
        for year in range(first + 1, num_years):
            alive = alive and _rng.uniform() < phi
            row[year] = int(alive and _rng.uniform() < p)
    return rows


HISTORIES = _histories(60, 7, 0.7, 0.6)


def capture_recapture(history: Any) -> Any:
    """Cormack, Jolly and Seber, the deaths summed out; the recapture, and survival being high."""
    phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
    p = numpyro.sample("p", dist.Uniform(0.0, 1.0))
    num_years = history.shape[1]
    years = jnp.arange(num_years)
    first = jnp.argmax(history, axis=1)
    last = num_years - 1 - jnp.argmax(history[:, ::-1], axis=1)
    between = (years > first[:, None]) & (years <= last[:, None])
    seen = jnp.where(history == 1, jnp.log(p), jnp.log1p(-p))
    log_known = jnp.sum(jnp.where(between, jnp.log(phi) + seen, 0.0), axis=1)
    never_again = [jnp.ones(())]
    for _ in range(num_years - 1):
        never_again.append(1 - phi + phi * (1 - p) * never_again[-1])
    log_unseen = jnp.log(jnp.stack(never_again))[num_years - 1 - last]
    numpyro.factor("history", jnp.sum(log_known + log_unseen))
    return jnp.stack([p, 1.0 * (phi > 0.8), 1.0 * (phi > 0.92)])


_rng = np.random.default_rng(304)
BIRDS = _rng.binomial(_rng.poisson(6.0, size=30)[:, None], 0.5, size=(30, 3))
NUMBERS = np.arange(40)


def n_mixture(counts: Any, numbers: Any) -> Any:
    """Repeated counts of birds, the true numbers summed out; the density being very high."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.2))
    detection = numpyro.sample("detection", dist.Beta(2.0, 2.0))
    prior = dist.Poisson(rate).log_prob(numbers)
    n, y = numbers[None, :, None], counts[:, None, :]
    possible = y <= n
    rest = jnp.where(possible, n - y, 0)
    log_choose = gammaln(n + 1.0) - gammaln(y + 1.0) - gammaln(rest + 1.0)
    terms = log_choose + y * jnp.log(detection) + rest * jnp.log1p(-detection)
    each = jnp.sum(jnp.where(possible, terms, -jnp.inf), axis=2)
    numpyro.factor("counts", jnp.sum(logsumexp(prior + each, axis=1)))
    return jnp.stack([detection, 1.0 * (rate > 12.0), 1.0 * (rate > 30.0)])


_rng = np.random.default_rng(305)
TWO_GROUPS = np.concatenate([_rng.normal(-1.5, 1.0, size=25), _rng.normal(1.8, 0.8, size=35)])


def normal_mixture(y: Any) -> Any:
    """Two normal components with ordered means; the upper mean, and a large lower share."""
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    means = numpyro.sample(
        "means",
        dist.TransformedDistribution(
            dist.Normal(0.0, 2.0).expand([2]).to_event(1), transforms.OrderedTransform()
        ),
    )
    sds = numpyro.sample("sds", dist.LogNormal(0.0, 0.5).expand([2]).to_event(1))
    log_shares = jnp.log(jnp.stack([share, 1 - share]))
    terms = log_shares + dist.Normal(means, sds).log_prob(y[:, None])
    numpyro.factor("y", jnp.sum(logsumexp(terms, axis=1)))
    return jnp.stack([means[1], 1.0 * (share > 0.7), 1.0 * (share > 0.995)])


# British coal mining disasters by year, 1851 to 1950 without the two years that are disputed.
_text = (
    "4 5 4 0 1 4 3 4 0 6 3 3 4 0 2 6 3 3 5 4 5 3 1 4 4 1 5 5 3 4 2 5 2 2 3 4 2 1 3 2 1 1 1 1 "
    "3 0 0 1 0 1 1 0 0 3 1 0 3 2 2 0 1 1 1 0 1 0 1 0 0 0 2 1 0 0 0 1 1 0 2 3 3 1 2 1 1 1 1 2 "
    "4 2"
)
DISASTERS = np.array(_text.split(), dtype=int)


def change_point(counts: Any) -> Any:
    """Coal mining disasters, the year of change summed out; the early rate, and the late one."""
    early = numpyro.sample("early", dist.Exponential(0.5))
    late = numpyro.sample("late", dist.Exponential(0.5))
    zero = jnp.zeros(1)
    before = jnp.concatenate([zero, jnp.cumsum(counts * jnp.log(early) - early)])
    after = jnp.concatenate([zero, jnp.cumsum(counts * jnp.log(late) - late)])
    numpyro.factor("counts", logsumexp(before + after[-1] - after))
    return jnp.stack([early, 1.0 * (late > 1.5), 1.0 * (late > 2.0)])


# Deaths by horse kicks in ten Prussian corps over twenty years (Bortkiewicz): 0, 1, 2, 3, 4.
DEATH_COUNTS = np.array([0, 1, 2, 3, 4])
CORPS_YEARS = np.array([109, 65, 22, 3, 1])


def horse_kicks(deaths: Any, times: Any) -> Any:
    """A negative binomial for Bortkiewicz's deaths; the mean rate, and it being high."""
    rate = numpyro.sample("rate", dist.Gamma(0.5, 0.001))
    concentration = numpyro.sample("concentration", dist.Gamma(2.0, 0.1))
    law = dist.NegativeBinomial2(rate, concentration)
    numpyro.factor("times", jnp.sum(times * law.log_prob(deaths)))
    return jnp.stack([rate, 1.0 * (rate > 0.75), 1.0 * (rate > 0.91)])


_rng = np.random.default_rng(307)
TRIPLES = _rng.multivariate_normal(
    [1.0, 0.0, -1.0], [[1.0, 0.5, 0.2], [0.5, 1.5, -0.3], [0.2, -0.3, 0.8]], size=40
)


def multivariate_normal(y: Any) -> Any:
    """Three means, scales and an LKJ correlation; the first mean, and a high correlation."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0).expand([3]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfCauchy(2.5).expand([3]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(3, concentration=1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.MultivariateNormal(mean, scale_tril=sd[:, None] * factor), obs=y)
    correlation = factor[1, 0]
    return jnp.stack([mean[0], 1.0 * (correlation > 0.6), 1.0 * (correlation > 0.78)])


_rng = np.random.default_rng(308)
_noise = _rng.multivariate_normal([0.0, 0.0], [[1.0, 0.6], [0.6, 1.0]], size=35)
SUR_X = _rng.normal(size=(35, 2))
SUR_Y = np.array([1.0, -0.5]) + np.array([0.8, 0.3]) * SUR_X + _noise


def unrelated_regressions(x: Any, y: Any) -> Any:
    """Two regressions with correlated errors; the first slope, and the second's being large."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfCauchy(2.5).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=1.0))
    with numpyro.plate("rows", x.shape[0]):
        law = dist.MultivariateNormal(intercept + slope * x, scale_tril=sd[:, None] * factor)
        numpyro.sample("y", law, obs=y)
    return jnp.stack([slope[0], 1.0 * (slope[1] > 0.6), 1.0 * (slope[1] > 1.0)])


_rng = np.random.default_rng(309)
_scores = _rng.normal(size=30)
TESTS = np.outer(_scores, [1.0, 0.8, 0.9, 0.6, 0.4]) + 0.6 * _rng.normal(size=(30, 5))


def factor_model(y: Any) -> Any:
    """One factor behind five tests; a loading, and the first person's factor being high."""
    loading = numpyro.sample("loading", dist.HalfNormal(2.0).expand([5]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfCauchy(1.0).expand([5]).to_event(1))
    with numpyro.plate("people", y.shape[0]):
        score = numpyro.sample("score", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(score[:, None] * loading, sd).to_event(2), obs=y)
    return jnp.stack([loading[0], 1.0 * (score[0] > -0.5), 1.0 * (score[0] > 0.2)])


_rng = np.random.default_rng(310)
GRID = 6
_site = np.arange(GRID * GRID).reshape(GRID, GRID)
EDGES = np.concatenate(
    [
        np.stack([_site[:, :-1].ravel(), _site[:, 1:].ravel()], axis=1),
        np.stack([_site[:-1].ravel(), _site[1:].ravel()], axis=1),
    ]
)
_field = np.sin(_site // GRID / 2.0) + np.cos(_site % GRID / 2.0)
CASES = _rng.poisson(4.0 * np.exp(0.5 * _field.ravel()))
EXPECTED = np.full(GRID * GRID, 4.0)


def spatial(edges: Any, expected: Any, cases: Any) -> Any:
    """Disease mapping on a grid, an intrinsic autoregression; one area's risk being high."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    flat = dist.ImproperUniform(constraints.real_vector, (), event_shape=(36,))
    phi = numpyro.sample("phi", flat)
    steps = (phi[edges[:, 0]] - phi[edges[:, 1]]) / tau
    numpyro.factor("smooth", -0.5 * jnp.sum(steps**2) - 35 * jnp.log(tau))
    numpyro.factor("sum_to_zero", dist.Normal(0.0, 0.1).log_prob(jnp.sum(phi)))
    with numpyro.plate("areas", cases.shape[0]):
        numpyro.sample("cases", dist.Poisson(expected * jnp.exp(intercept + phi)), obs=cases)
    risk = intercept + phi[35]
    return jnp.stack([intercept, 1.0 * (risk > 1.0), 1.0 * (risk > 1.6)])


MODELS = [
    PeopleModel(
        "weibull_survival",
        "Weibull survival with censoring (leukaemia)",
        "survival",
        weibull_survival,
        (WEEKS, ENDED, DRUG),
        3,
    ),
    PeopleModel(
        "exponential_survival",
        "Exponential survival with censoring (leukaemia)",
        "survival",
        exponential_survival,
        (WEEKS, ENDED, DRUG),
        2,
    ),
    PeopleModel(
        "frailty",
        "Log-normal survival with clinics and censoring",
        "survival",
        frailty,
        (CLINIC, AGE, DEATH_TIME, DEATH_SEEN),
        14,
    ),
    PeopleModel("occupancy", "Occupancy of sites", "ecology", occupancy, (FOREST, SEEN), 3),
    PeopleModel(
        "capture_recapture",
        "Capture and recapture (Cormack–Jolly–Seber)",
        "ecology",
        capture_recapture,
        (HISTORIES,),
        2,
    ),
    PeopleModel(
        "n_mixture",
        "Repeated counts with imperfect detection",
        "ecology",
        n_mixture,
        (BIRDS, NUMBERS),
        2,
    ),
    PeopleModel(
        "normal_mixture",
        "Mixture of two normals with ordered means",
        "mixture",
        normal_mixture,
        (TWO_GROUPS,),
        5,
    ),
    PeopleModel(
        "change_point",
        "Coal mining disasters with a change point",
        "change point",
        change_point,
        (DISASTERS,),
        2,
    ),
    PeopleModel(
        "horse_kicks",
        "Deaths by horse kicks, negative binomial",
        "counts",
        horse_kicks,
        (DEATH_COUNTS, CORPS_YEARS),
        2,
    ),
    PeopleModel(
        "multivariate_normal",
        "Multivariate normal with an LKJ correlation",
        "covariance",
        multivariate_normal,
        (TRIPLES,),
        9,
    ),
    PeopleModel(
        "unrelated_regressions",
        "Two regressions with correlated errors",
        "covariance",
        unrelated_regressions,
        (SUR_X, SUR_Y),
        7,
    ),
    PeopleModel(
        "factor_model", "One factor behind five tests", "covariance", factor_model, (TESTS,), 40
    ),
    PeopleModel(
        "spatial",
        "Disease mapping with an intrinsic autoregression",
        "spatial",
        spatial,
        (EDGES, EXPECTED, CASES),
        38,
    ),
]
