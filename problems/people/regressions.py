"""Regressions: linear, generalised linear, robust, sparse, ordinal and nonlinear ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from problems.people.model import PeopleModel

_rng = np.random.default_rng(101)
LINEAR_X = _rng.normal(size=(40, 3))
LINEAR_Y = 2.0 + LINEAR_X @ np.array([1.0, 0.4, -0.7]) + 1.2 * _rng.normal(size=40)


def linear_regression(x: Any, y: Any) -> Any:
    """A mean for a new row; the second slope being large."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 100.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 100.0).expand([3]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(5.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(intercept + x @ beta, sigma), obs=y)
    predicted = intercept + beta[0] - beta[2]
    return jnp.stack([predicted, 1.0 * (beta[1] > 1.0), 1.0 * (beta[1] > 1.6)])


# Anscombe's first data set.
ANSCOMBE_X = np.array([10.0, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5])
ANSCOMBE_Y = np.array([8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68])


def flat_linear_regression(x: Any, y: Any) -> Any:
    """Anscombe's line under the reference prior; its slope, and the slope being negative."""
    intercept = numpyro.sample("intercept", dist.ImproperUniform(constraints.real, (), ()))
    slope = numpyro.sample("slope", dist.ImproperUniform(constraints.real, (), ()))
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    numpyro.factor("reference_prior", -jnp.log(sigma))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(intercept + slope * x, sigma), obs=y)
    return jnp.stack([slope, 1.0 * (slope < 0.2), 1.0 * (slope < -0.6)])


# The space shuttle's O-rings before Challenger: temperature (F), and whether one was damaged.
TEMPERATURE = np.array(
    [66, 70, 69, 68, 67, 72, 73, 70, 57, 63, 70, 78, 67, 53, 67, 75, 70, 81, 76, 79, 75, 76, 58]
)
DAMAGED = np.array([0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1])


def challenger(temperature: Any, damaged: Any) -> Any:
    """Damage by temperature; the log odds at 60 F against 75 F, and a warm launch being worse."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    logits = intercept + slope * (temperature - 70.0) / 10.0
    with numpyro.plate("flights", temperature.shape[0]):
        numpyro.sample("damaged", dist.Bernoulli(logits=logits), obs=damaged)
    return jnp.stack([-1.5 * slope, 1.0 * (slope > -0.5), 1.0 * (slope > 1.0)])


_rng = np.random.default_rng(102)
LOGISTIC_X = _rng.normal(size=(120, 5))
_logits = -0.5 + LOGISTIC_X @ np.array([1.0, -0.8, 0.5, 0.0, 0.0])
LOGISTIC_Y = (_rng.uniform(size=120) < 1 / (1 + np.exp(-_logits))).astype(int)


def logistic_regression(x: Any, y: Any) -> Any:
    """The first odds ratio; the last slope, which is none, being large."""
    intercept = numpyro.sample("intercept", dist.Cauchy(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Cauchy(0.0, 2.5).expand([5]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ beta), obs=y)
    return jnp.stack([jnp.exp(beta[0]), 1.0 * (beta[4] > 0.4), 1.0 * (beta[4] > 0.9)])


_rng = np.random.default_rng(103)
PROBIT_X = _rng.normal(size=(60, 2))
PROBIT_Y = (0.3 + PROBIT_X @ np.array([0.9, -0.4]) + _rng.normal(size=60) > 0).astype(int)


def probit_regression(x: Any, y: Any) -> Any:
    """A probit link; the first slope, and the chance of a one for an average row."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    logp1 = jax.scipy.stats.norm.logcdf(intercept + x @ beta)
    logp0 = jax.scipy.stats.norm.logcdf(-intercept - x @ beta)
    numpyro.factor("y", jnp.sum(jnp.where(y == 1, logp1, logp0)))
    chance = jax.scipy.special.ndtr(intercept)
    return jnp.stack([beta[0], 1.0 * (chance > 0.8), 1.0 * (chance > 0.92)])


# Bioassay (Racine et al. 1986): log dose, animals, deaths.
DOSE = np.array([-0.86, -0.30, -0.05, 0.73])
ANIMALS = np.array([5, 5, 5, 5])
DEATHS = np.array([0, 1, 3, 5])


def bioassay(dose: Any, animals: Any, deaths: Any) -> Any:
    """Flat priors; the slope, and the slope being very steep."""
    alpha = numpyro.sample("alpha", dist.ImproperUniform(constraints.real, (), ()))
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real, (), ()))
    with numpyro.plate("groups", dose.shape[0]):
        numpyro.sample("deaths", dist.Binomial(animals, logits=alpha + beta * dose), obs=deaths)
    return jnp.stack([beta, 1.0 * (beta > 30.0), 1.0 * (beta > 60.0)])


_rng = np.random.default_rng(104)
POISSON_X = _rng.normal(size=(60, 3))
EXPOSURE = _rng.uniform(0.5, 3.0, size=60)
POISSON_Y = _rng.poisson(EXPOSURE * np.exp(0.5 + POISSON_X @ np.array([0.5, -0.3, 0.1])))


def poisson_regression(x: Any, exposure: Any, y: Any) -> Any:
    """Counts with an exposure; a rate ratio, and the third slope being large."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([3]).to_event(1))
    rate = exposure * jnp.exp(intercept + x @ beta)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)
    return jnp.stack([jnp.exp(beta[0] - beta[1]), 1.0 * (beta[2] > 0.32), 1.0 * (beta[2] > 0.48)])


_rng = np.random.default_rng(105)
NEGATIVE_X = _rng.normal(size=(80, 2))
_mean = np.exp(1.2 + NEGATIVE_X @ np.array([0.6, -0.2]))
NEGATIVE_Y = _rng.poisson(_mean * _rng.gamma(2.0, 0.5, size=80))


def negative_binomial_regression(x: Any, y: Any) -> Any:
    """Overdispersed counts; a predicted mean, and hardly any overdispersion."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    concentration = numpyro.sample("concentration", dist.HalfCauchy(5.0))
    mean = jnp.exp(intercept + x @ beta)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(mean, concentration), obs=y)
    predicted = jnp.exp(intercept + beta[0])
    return jnp.stack([predicted, 1.0 * (concentration > 3.0), 1.0 * (concentration > 6.0)])


_rng = np.random.default_rng(106)
ROBUST_X = np.linspace(-2.0, 2.0, 30)
ROBUST_Y = 1.0 + 1.5 * ROBUST_X + 0.5 * _rng.normal(size=30)
ROBUST_Y[[4, 17, 25]] += np.array([5.0, -4.0, 6.0])


def robust_regression(x: Any, y: Any) -> Any:
    """Student's t errors with an unknown number of degrees of freedom; the line at 2."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.StudentT(nu, intercept + slope * x, sigma), obs=y)
    at_two = intercept + 2.0 * slope
    return jnp.stack([slope, 1.0 * (at_two > 4.4), 1.0 * (at_two > 5.0)])


# Newcomb's 66 measurements of the passing time of light.
_text = (
    "28 26 33 24 34 -44 27 16 40 -2 29 22 24 21 25 30 23 29 31 19 24 20 36 32 36 28 25 21 28 "
    "29 37 25 28 26 30 32 36 26 30 22 36 23 27 27 28 27 31 27 26 33 26 32 32 24 39 28 24 25 "
    "32 25 29 27 28 29 16 23"
)
NEWCOMB = np.array(_text.split(), dtype=float)


def speed_of_light(y: Any) -> Any:
    """Newcomb's measurements with t errors; the centre, and the centre near today's value."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 100.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(10.0))
    nu = numpyro.sample("nu", dist.Exponential(0.1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.StudentT(nu, mu, sigma), obs=y)
    return jnp.stack([mu, 1.0 * (mu > 29.0), 1.0 * (mu > 30.5)])


_rng = np.random.default_rng(107)
SPARSE_X = _rng.normal(size=(40, 10))
SPARSE_Y = SPARSE_X @ np.array([2.0, -1.5, 1.0, 0, 0, 0, 0, 0, 0, 0]) + _rng.normal(size=40)


def horseshoe_regression(x: Any, y: Any) -> Any:
    """Ten slopes under a horseshoe; a strong one, and one that is none being large."""
    overall = numpyro.sample("overall", dist.HalfCauchy(1.0))
    local = numpyro.sample("local", dist.HalfCauchy(1.0).expand([10]).to_event(1))
    beta = numpyro.sample("beta", dist.Normal(0.0, overall * local).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)
    return jnp.stack([beta[0], 1.0 * (beta[7] > 0.6), 1.0 * (beta[7] > 1.4)])


_rng = np.random.default_rng(108)
ORDINAL_X = _rng.normal(size=80)
ORDINAL_Y = np.digitize(1.1 * ORDINAL_X + _rng.logistic(size=80), [-2.0, -0.5, 0.8, 2.2])


def ordinal_regression(x: Any, y: Any) -> Any:
    """Five grades with flat, ordered cut points; the slope, and the top grade being likely."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    cuts = numpyro.sample(
        "cuts", dist.ImproperUniform(constraints.ordered_vector, (), event_shape=(4,))
    )
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(slope * x, cuts), obs=y)
    top = jax.nn.sigmoid(slope - cuts[3])
    return jnp.stack([slope, 1.0 * (top > 0.38), 1.0 * (top > 0.55)])


_rng = np.random.default_rng(109)
CLASS_X = _rng.normal(size=(90, 2))
_scores = np.stack(
    [CLASS_X @ [1.0, 0.0], 0.4 + CLASS_X @ [-0.5, 0.8], np.zeros(90)], axis=1
) + _rng.gumbel(size=(90, 3))
CLASS_Y = np.argmax(_scores, axis=1)


def multinomial_logit(x: Any, y: Any) -> Any:
    """Three classes, the last the baseline; the first class at the origin being likely."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    beta = numpyro.sample("beta", dist.Normal(0.0, 3.0).expand([2, 2]).to_event(2))
    logits = jnp.concatenate([intercept + x @ beta, jnp.zeros((x.shape[0], 1))], axis=1)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)
    chance = jax.nn.softmax(jnp.append(intercept, 0.0))[0]
    return jnp.stack([beta[0, 0] - beta[0, 1], 1.0 * (chance > 0.4), 1.0 * (chance > 0.54)])


_rng = np.random.default_rng(110)
SPREAD_X = np.linspace(0.0, 3.0, 50)
SPREAD_Y = 1.0 + 0.8 * SPREAD_X + np.exp(-1.0 + 0.5 * SPREAD_X) * _rng.normal(size=50)


def heteroscedastic_regression(x: Any, y: Any) -> Any:
    """A log-linear spread; the slope, and a spread that shrinks with x."""
    a = numpyro.sample("a", dist.Normal(0.0, 10.0))
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    c = numpyro.sample("c", dist.Normal(0.0, 5.0))
    d = numpyro.sample("d", dist.Normal(0.0, 5.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(a + b * x, jnp.exp(c + d * x)), obs=y)
    return jnp.stack([b, 1.0 * (d < 0.1), 1.0 * (d < -0.3)])


_rng = np.random.default_rng(111)
SHARE_X = _rng.normal(size=40)
_share = 1 / (1 + np.exp(-(-0.4 + 0.7 * SHARE_X)))
SHARE_Y = np.clip(_rng.beta(8 * _share, 8 * (1 - _share)), 1e-3, 1 - 1e-3)


def beta_regression(x: Any, y: Any) -> Any:
    """Shares by a logit link; a predicted share, and the slope being large."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    precision = numpyro.sample("precision", dist.HalfCauchy(20.0))
    mean = jax.nn.sigmoid(intercept + slope * x)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Beta(mean * precision, (1 - mean) * precision), obs=y)
    predicted = jax.nn.sigmoid(intercept + slope)
    return jnp.stack([predicted, 1.0 * (slope > 1.1), 1.0 * (slope > 1.4)])


_rng = np.random.default_rng(112)
COST_X = _rng.normal(size=(50, 2))
COST_Y = _rng.gamma(3.0, np.exp(1.0 + COST_X @ np.array([0.4, 0.2])) / 3.0)


def gamma_regression(x: Any, y: Any) -> Any:
    """Costs by a log link; a predicted cost, and it being very high."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    shape = numpyro.sample("shape", dist.Gamma(0.01, 0.01))
    mean = jnp.exp(intercept + x @ beta)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Gamma(shape, shape / mean), obs=y)
    predicted = jnp.exp(intercept + beta[0] + beta[1])
    return jnp.stack([predicted, 1.0 * (predicted > 6.2), 1.0 * (predicted > 9.5)])


_rng = np.random.default_rng(113)
ZERO_X = _rng.normal(size=100)
ZERO_Y = np.where(_rng.uniform(size=100) < 0.35, 0, _rng.poisson(np.exp(0.9 + 0.4 * ZERO_X)))


def zero_inflated_poisson(x: Any, y: Any) -> Any:
    """Zeros of two kinds; the slope, and hardly any surplus of zeros."""
    gate = numpyro.sample("gate", dist.Beta(1.0, 1.0))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, jnp.exp(intercept + slope * x)), obs=y)
    return jnp.stack([slope, 1.0 * (gate < 0.18), 1.0 * (gate < 0.08)])


_rng = np.random.default_rng(114)
HURDLE_X = _rng.normal(size=80)
_amount = np.exp(0.5 + 0.6 * HURDLE_X + 0.7 * _rng.normal(size=80))
HURDLE_Y = np.where(_rng.uniform(size=80) < 1 / (1 + np.exp(-0.3 - HURDLE_X)), _amount, 0.0)


def hurdle(x: Any, y: Any) -> Any:
    """Whether there is spending, and how much; its chance at x = 1, and its mean being high.

    The posterior mean of that mean does not exist: it grows as exp(σ²/2), and no half-Cauchy prior
    stops it.
    """
    a = numpyro.sample("a", dist.Normal(0.0, 2.5).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 2.5).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    is_some = y > 0
    amount = jnp.where(is_some, y, 1.0)
    numpyro.sample("any", dist.Bernoulli(logits=a[0] + a[1] * x).to_event(1), obs=1 * is_some)
    log_amount = dist.LogNormal(b[0] + b[1] * x, sigma).log_prob(amount)
    numpyro.factor("amount", jnp.sum(jnp.where(is_some, log_amount, 0.0)))
    chance = jax.nn.sigmoid(a[0] + a[1])
    mean = chance * jnp.exp(b[0] + b[1] + 0.5 * sigma**2)
    return jnp.stack([chance, 1.0 * (mean > 4.5), 1.0 * (mean > 7.0)])


_rng = np.random.default_rng(115)
NOISY_TRUE = _rng.normal(size=20)
NOISY_X = NOISY_TRUE + 0.4 * _rng.normal(size=20)
NOISY_Y = 0.5 + 1.2 * NOISY_TRUE + 0.5 * _rng.normal(size=20)


def errors_in_variables(x: Any, y: Any) -> Any:
    """A covariate with known measurement errors; the slope, and it being very steep."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(1.0))
    with numpyro.plate("rows", x.shape[0]):
        true = numpyro.sample("true", dist.Normal(mean, spread))
        numpyro.sample("x", dist.Normal(true, 0.4), obs=x)
        numpyro.sample("y", dist.Normal(intercept + slope * true, sigma), obs=y)
    return jnp.stack([slope, 1.0 * (slope > 2.2), 1.0 * (slope > 3.5)])


# Puromycin (Treloar 1974): substrate concentration and reaction rate, treated cells.
SUBSTRATE = np.array([0.02, 0.02, 0.06, 0.06, 0.11, 0.11, 0.22, 0.22, 0.56, 0.56, 1.10, 1.10])
REACTION = np.array([76.0, 47, 97, 107, 123, 139, 159, 152, 191, 201, 207, 200])


def michaelis_menten(substrate: Any, rate: Any) -> Any:
    """Enzyme kinetics; the greatest rate, and the half-saturation being high."""
    vmax = numpyro.sample("vmax", dist.HalfNormal(500.0))
    km = numpyro.sample("km", dist.HalfNormal(1.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(20.0))
    with numpyro.plate("rows", substrate.shape[0]):
        numpyro.sample("rate", dist.Normal(vmax * substrate / (km + substrate), sigma), obs=rate)
    return jnp.stack([vmax, 1.0 * (km > 0.1), 1.0 * (km > 0.3)])


_rng = np.random.default_rng(116)
EMAX_DOSE = np.repeat(np.array([0.1, 0.3, 1.0, 3.0, 10.0, 30.0]), 4)
EMAX_Y = 10.0 + 40.0 / (1 + (2.0 / EMAX_DOSE) ** 1.3) + 4.0 * _rng.normal(size=24)


def dose_response(dose: Any, y: Any) -> Any:
    """A four-parameter logistic curve; its span, and the half-maximal dose being high."""
    bottom = numpyro.sample("bottom", dist.Normal(0.0, 50.0))
    span = numpyro.sample("span", dist.Normal(50.0, 50.0))
    log_ec50 = numpyro.sample("log_ec50", dist.Normal(0.0, 2.0))
    hill = numpyro.sample("hill", dist.LogNormal(0.0, 0.5))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(10.0))
    mean = bottom + span * jax.nn.sigmoid(hill * (jnp.log(dose) - log_ec50))
    with numpyro.plate("rows", dose.shape[0]):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)
    return jnp.stack([span, 1.0 * (log_ec50 > 1.2), 1.0 * (log_ec50 > 4.0)])


_rng = np.random.default_rng(117)
SPLINE_X = np.sort(_rng.uniform(0, 1, size=60))
SPLINE_Y = np.sin(6 * SPLINE_X) + 0.4 * _rng.normal(size=60)


def _hats(x: np.ndarray, num_knots: int) -> np.ndarray:
    """Cubic B-spline basis on equal knots over [0, 1], by the recursion of Cox and de Boor."""
    step = 1.0 / (num_knots - 3)
    knots = np.arange(-3, num_knots + 1) * step
    basis = ((x[:, None] >= knots[:-1]) & (x[:, None] < knots[1:])).astype(float)
    for degree in range(1, 4):
        left = (x[:, None] - knots[: -degree - 1]) / (degree * step)
        right = (knots[degree + 1 :] - x[:, None]) / (degree * step)
        basis = left * basis[:, :-1] + right * basis[:, 1:]
    return basis


SPLINE_BASIS = _hats(SPLINE_X, 12)
SPLINE_NEW = _hats(np.array([0.25]), 12)[0]


def spline_regression(basis: Any, new: Any, y: Any) -> Any:
    """A cubic spline whose weights walk at random; the curve at 0.25, and it being high."""
    first = numpyro.sample("first", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    steps = numpyro.sample("steps", dist.Normal(0.0, tau).expand([11]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    weights = first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])
    with numpyro.plate("rows", basis.shape[0]):
        numpyro.sample("y", dist.Normal(basis @ weights, sigma), obs=y)
    curve = new @ weights
    return jnp.stack([curve, 1.0 * (curve > 1.3), 1.0 * (curve > 1.7)])


_rng = np.random.default_rng(118)
BENT_X = np.linspace(0.0, 10.0, 40)
BENT_Y = 1.0 + 0.5 * BENT_X - 0.9 * np.maximum(BENT_X - 6.0, 0.0) + 0.5 * _rng.normal(size=40)


def bent_line(x: Any, y: Any) -> Any:
    """Two lines that meet at an unknown point, smoothly; the bend, and a late meeting point."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    bend = numpyro.sample("bend", dist.Normal(0.0, 10.0))
    knot = numpyro.sample("knot", dist.Uniform(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    mean = intercept + slope * x + bend * 0.3 * jax.nn.softplus((x - knot) / 0.3)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)
    return jnp.stack([bend, 1.0 * (knot > 6.6), 1.0 * (knot > 9.0)])


MODELS = [
    PeopleModel(
        "linear_regression",
        "Linear regression with wide priors",
        "regression",
        linear_regression,
        (LINEAR_X, LINEAR_Y),
        5,
    ),
    PeopleModel(
        "flat_linear_regression",
        "Linear regression with improper priors (Anscombe)",
        "regression",
        flat_linear_regression,
        (ANSCOMBE_X, ANSCOMBE_Y),
        3,
    ),
    PeopleModel(
        "challenger",
        "Logistic regression of O-ring damage (Challenger)",
        "regression",
        challenger,
        (TEMPERATURE, DAMAGED),
        2,
    ),
    PeopleModel(
        "logistic_regression",
        "Logistic regression with Cauchy priors",
        "regression",
        logistic_regression,
        (LOGISTIC_X, LOGISTIC_Y),
        6,
    ),
    PeopleModel(
        "probit_regression",
        "Probit regression",
        "regression",
        probit_regression,
        (PROBIT_X, PROBIT_Y),
        3,
    ),
    PeopleModel(
        "bioassay",
        "Bioassay with flat priors",
        "dose response",
        bioassay,
        (DOSE, ANIMALS, DEATHS),
        2,
    ),
    PeopleModel(
        "poisson_regression",
        "Poisson regression with an exposure",
        "regression",
        poisson_regression,
        (POISSON_X, EXPOSURE, POISSON_Y),
        4,
    ),
    PeopleModel(
        "negative_binomial_regression",
        "Negative binomial regression",
        "regression",
        negative_binomial_regression,
        (NEGATIVE_X, NEGATIVE_Y),
        4,
    ),
    PeopleModel(
        "robust_regression",
        "Robust regression with Student's t errors",
        "regression",
        robust_regression,
        (ROBUST_X, ROBUST_Y),
        4,
    ),
    PeopleModel(
        "speed_of_light",
        "Robust location of Newcomb's measurements",
        "regression",
        speed_of_light,
        (NEWCOMB,),
        3,
    ),
    PeopleModel(
        "horseshoe_regression",
        "Horseshoe regression, centred",
        "regression",
        horseshoe_regression,
        (SPARSE_X, SPARSE_Y),
        22,
    ),
    PeopleModel(
        "ordinal_regression",
        "Ordered logistic regression with flat cut points",
        "regression",
        ordinal_regression,
        (ORDINAL_X, ORDINAL_Y),
        5,
    ),
    PeopleModel(
        "multinomial_logit",
        "Multinomial logistic regression",
        "regression",
        multinomial_logit,
        (CLASS_X, CLASS_Y),
        6,
    ),
    PeopleModel(
        "heteroscedastic_regression",
        "Regression with a spread that depends on x",
        "regression",
        heteroscedastic_regression,
        (SPREAD_X, SPREAD_Y),
        4,
    ),
    PeopleModel(
        "beta_regression",
        "Beta regression of shares",
        "regression",
        beta_regression,
        (SHARE_X, SHARE_Y),
        3,
    ),
    PeopleModel(
        "gamma_regression",
        "Gamma regression of costs",
        "regression",
        gamma_regression,
        (COST_X, COST_Y),
        4,
    ),
    PeopleModel(
        "zero_inflated_poisson",
        "Zero-inflated Poisson regression",
        "counts",
        zero_inflated_poisson,
        (ZERO_X, ZERO_Y),
        3,
    ),
    PeopleModel(
        "hurdle",
        "Hurdle model of spending",
        "counts",
        hurdle,
        (HURDLE_X, HURDLE_Y),
        5,
    ),
    PeopleModel(
        "errors_in_variables",
        "Regression with errors in the covariate",
        "regression",
        errors_in_variables,
        (NOISY_X, NOISY_Y),
        25,
    ),
    PeopleModel(
        "michaelis_menten",
        "Michaelis–Menten kinetics (Puromycin)",
        "dose response",
        michaelis_menten,
        (SUBSTRATE, REACTION),
        3,
    ),
    PeopleModel(
        "dose_response",
        "Four-parameter dose response",
        "dose response",
        dose_response,
        (EMAX_DOSE, EMAX_Y),
        5,
    ),
    PeopleModel(
        "spline_regression",
        "Penalised spline, centred",
        "smoothing",
        spline_regression,
        (SPLINE_BASIS, SPLINE_NEW, SPLINE_Y),
        14,
    ),
    PeopleModel(
        "bent_line",
        "Two lines with an unknown meeting point",
        "change point",
        bent_line,
        (BENT_X, BENT_Y),
        5,
    ),
]
