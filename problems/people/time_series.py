"""Time series, state spaces, Gaussian processes, hidden states and differential equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import logsumexp

from problems.people.model import PeopleModel


def _series(seed: int, phi: tuple[float, ...], length: int, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    y = list(rng.normal(size=len(phi)))
    for _ in range(length + 20):
        y.append(sum(p * v for p, v in zip(phi, y[::-1], strict=False)) + scale * rng.normal())
    return np.array(y[-length:])


AR_Y = 2.0 + _series(401, (0.5, 0.2), 60)


def autoregression(y: Any) -> Any:
    """AR(2) given its first two values; the long-run sum, and a root near one."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    phi = numpyro.sample("phi", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    mean = alpha + phi[0] * y[1:-1] + phi[1] * y[:-2]
    with numpyro.plate("times", y.shape[0] - 2):
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y[2:])
    total = phi[0] + phi[1]
    return jnp.stack([total, 1.0 * (total > 1.0), 1.0 * (total > 1.3)])


_rng = np.random.default_rng(402)
_shock = _rng.normal(size=51)
_arma = np.zeros(51)
for _t in range(1, 51):
    _arma[_t] = 0.6 * _arma[_t - 1] + _shock[_t] + 0.4 * _shock[_t - 1]
ARMA_Y = 1.0 + _arma[1:]


def arma(y: Any) -> Any:
    """ARMA(1, 1) by its shocks; the autoregression, and a strong moving average."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0))
    theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))

    def step(carry: Any, now: Any) -> Any:
        previous, shock = carry
        shock = now - mean - phi * (previous - mean) - theta * shock
        return (now, shock), shock

    _, shocks = lax.scan(step, (mean, 0.0 * mean), y)
    numpyro.factor("y", jnp.sum(dist.Normal(0.0, sigma).log_prob(shocks)))
    return jnp.stack([phi, 1.0 * (theta > 0.6), 1.0 * (theta > 0.84)])


# The flow of the Nile at Aswan, 1871 to 1910.
_text = (
    "1120 1160 963 1210 1160 1160 813 1230 1370 1140 995 935 1110 994 1020 960 1180 799 958 "
    "1140 1100 1210 1150 1250 1260 1220 1030 1100 774 840 874 694 940 833 701 916 692 1020 "
    "1050 969"
)
NILE = np.array(_text.split(), dtype=float)


def local_level(y: Any) -> Any:
    """The Nile's level walks at random, centred; the last level, and it being high."""
    sd_level = numpyro.sample("sd_level", dist.HalfNormal(100.0))
    sd_y = numpyro.sample("sd_y", dist.HalfNormal(200.0))
    num_times = y.shape[0]
    first = numpyro.sample("first", dist.Normal(1000.0, 500.0))
    steps = numpyro.sample("steps", dist.Normal(0.0, sd_level).expand([num_times - 1]).to_event(1))
    level = first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])
    with numpyro.plate("years", num_times):
        numpyro.sample("y", dist.Normal(level, sd_y), obs=y)
    return jnp.stack([level[-1], 1.0 * (level[-1] > 1150.0), 1.0 * (level[-1] > 1400.0)])


_rng = np.random.default_rng(403)
_slope = 0.3 + np.cumsum(0.1 * _rng.normal(size=25))
TREND_Y = np.cumsum(_slope + 0.3 * _rng.normal(size=25)) + 0.6 * _rng.normal(size=25)


def local_linear_trend(y: Any) -> Any:
    """A level and a slope that walk at random; the last level, and the last slope."""
    sd = numpyro.sample("sd", dist.HalfNormal(1.0).expand([3]).to_event(1))
    num_times = y.shape[0]
    slope = numpyro.sample("slope", dist.GaussianRandomWalk(scale=sd[0], num_steps=num_times))
    steps = numpyro.sample("steps", dist.Normal(slope, sd[1]).to_event(1))
    level = jnp.cumsum(steps)
    with numpyro.plate("times", num_times):
        numpyro.sample("y", dist.Normal(level, sd[2]), obs=y)
    return jnp.stack([level[-1], 1.0 * (slope[-1] > 1.5), 1.0 * (slope[-1] > 3.0)])


_rng = np.random.default_rng(404)
MONTH = np.arange(48)
SEASON_Y = 5.0 + 0.05 * MONTH + np.tile(np.sin(np.arange(12)), 4) + 0.5 * _rng.normal(size=48)


def seasonal(month: Any, y: Any) -> Any:
    """A trend and twelve months; the yearly growth, and July being above the trend."""
    level = numpyro.sample("level", dist.Normal(0.0, 10.0))
    trend = numpyro.sample("trend", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    with numpyro.plate("months", 12):
        effect = numpyro.sample("effect", dist.Normal(0.0, tau))
    with numpyro.plate("times", y.shape[0]):
        numpyro.sample("y", dist.Normal(level + trend * month + effect[month % 12], sigma), obs=y)
    return jnp.stack([12.0 * trend, 1.0 * (effect[6] > 0.8), 1.0 * (effect[6] > 2.0)])


_rng = np.random.default_rng(405)
_h = _series(406, (0.9,), 40, 0.3)
RETURNS = np.exp(_h / 2) * _rng.normal(size=40)


def stochastic_volatility(returns: Any) -> Any:
    """Log volatilities by an AR(1), centred; the last volatility, and it being high."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    num_times = returns.shape[0]
    flat = dist.Normal(0.0, 1.0).expand([num_times]).mask(False).to_event(1)
    h = numpyro.sample("h", flat)
    stationary = dist.Normal(mu, sigma / jnp.sqrt(1 - phi**2))
    moves = dist.Normal(mu + phi * (h[:-1] - mu), sigma)
    numpyro.factor("h_prior", stationary.log_prob(h[0]) + jnp.sum(moves.log_prob(h[1:])))
    with numpyro.plate("days", num_times):
        numpyro.sample("returns", dist.Normal(0.0, jnp.exp(h / 2)), obs=returns)
    return jnp.stack([jnp.exp(h[-1] / 2), 1.0 * (h[-1] > 2.5), 1.0 * (h[-1] > 6.0)])


_rng = np.random.default_rng(407)
_variance, _garch = 1.0, []
for _ in range(120):
    _garch.append(np.sqrt(_variance) * _rng.normal())
    _variance = 0.3 + 0.3 * _garch[-1] ** 2 + 0.5 * _variance
GARCH_Y = np.array(_garch)


def garch(y: Any) -> Any:
    """GARCH(1, 1); the standard deviation of tomorrow, and it being high."""
    omega = numpyro.sample("omega", dist.HalfNormal(1.0))
    alpha = numpyro.sample("alpha", dist.Uniform(0.0, 1.0))
    beta = numpyro.sample("beta", dist.Uniform(0.0, 1.0 - alpha))

    def step(variance: Any, now: Any) -> Any:
        log_density = -0.5 * (jnp.log(variance) + now**2 / variance)
        return omega + alpha * now**2 + beta * variance, log_density

    variance, log_densities = lax.scan(step, jnp.var(y) + 0.0 * omega, y)
    numpyro.factor("y", jnp.sum(log_densities))
    tomorrow = jnp.sqrt(variance)
    return jnp.stack([tomorrow, 1.0 * (tomorrow > 1.55), 1.0 * (tomorrow > 1.78)])


_rng = np.random.default_rng(408)
_var = np.zeros((41, 2))
for _t in range(40):
    _var[_t + 1] = np.array([[0.6, 0.2], [0.0, 0.5]]) @ _var[_t] + _rng.normal(size=2)
VAR_Y = _var


def vector_autoregression(y: Any) -> Any:
    """VAR(1) with an LKJ correlation; an own lag, and the second series driving the first."""
    lag = numpyro.sample("lag", dist.Normal(0.0, 1.0).expand([2, 2]).to_event(2))
    sd = numpyro.sample("sd", dist.HalfCauchy(2.5).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=1.0))
    with numpyro.plate("times", y.shape[0] - 1):
        law = dist.MultivariateNormal(y[:-1] @ lag.T, scale_tril=sd[:, None] * factor)
        numpyro.sample("y", law, obs=y[1:])
    return jnp.stack([lag[0, 0], 1.0 * (lag[0, 1] > 0.7), 1.0 * (lag[0, 1] > 1.1)])


_rng = np.random.default_rng(409)
_log_rate = 1.0 + np.cumsum(0.25 * _rng.normal(size=30))
WALK_COUNTS = _rng.poisson(np.exp(_log_rate))


def random_walk_counts(counts: Any) -> Any:
    """Poisson counts whose log rate walks at random; the middle rate, and the last one."""
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    start = numpyro.sample("start", dist.Normal(0.0, 5.0))
    walk = dist.GaussianRandomWalk(scale=sigma, num_steps=counts.shape[0])
    path = numpyro.sample("path", walk)
    log_rate = start + path
    with numpyro.plate("times", counts.shape[0]):
        numpyro.sample("counts", dist.Poisson(jnp.exp(log_rate)), obs=counts)
    last = log_rate[-1]
    return jnp.stack([jnp.exp(log_rate[15]), 1.0 * (last > 1.5), 1.0 * (last > 2.5)])


# Gaussian processes ------------------------------------------------------------------------------


def _kernel(x: Any, z: Any, scale: Any, length: Any) -> Any:
    return scale**2 * jnp.exp(-0.5 * ((x[:, None] - z[None, :]) / length) ** 2)


_rng = np.random.default_rng(410)
GP_X = np.sort(_rng.uniform(-2.0, 2.0, size=25))
GP_Y = np.sin(2.0 * GP_X) + 0.3 * _rng.normal(size=25)
GP_NEW = np.array([0.8])


def gp_regression(x: Any, y: Any, new: Any) -> Any:
    """The function summed out; its mean at 0.8, and a long length scale."""
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    length = numpyro.sample("length", dist.InverseGamma(3.0, 2.0))
    noise = numpyro.sample("noise", dist.HalfCauchy(0.5))
    covariance = _kernel(x, x, scale, length) + (noise**2 + 1e-5) * jnp.eye(x.shape[0])
    factor = jnp.linalg.cholesky(covariance)
    numpyro.sample("y", dist.MultivariateNormal(0.0, scale_tril=factor), obs=y)
    weights = jax.scipy.linalg.cho_solve((factor, True), y)
    mean = (_kernel(new, x, scale, length) @ weights)[0]
    return jnp.stack([mean, 1.0 * (length > 1.5), 1.0 * (length > 10.0)])


_rng = np.random.default_rng(411)
COX_X = np.linspace(0.0, 1.0, 20)
COX_Y = _rng.poisson(np.exp(1.5 + np.sin(6 * COX_X)))


def gp_poisson(x: Any, counts: Any) -> Any:
    """Counts whose log rate is a Gaussian process; the first rate, and the last one."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    length = numpyro.sample("length", dist.InverseGamma(4.0, 1.0))
    covariance = _kernel(x, x, scale, length) + 1e-4 * jnp.eye(x.shape[0])
    eta = numpyro.sample("eta", dist.Normal(0.0, 1.0).expand([20]).to_event(1))
    log_rate = mean + jnp.linalg.cholesky(covariance) @ eta
    with numpyro.plate("bins", x.shape[0]):
        numpyro.sample("counts", dist.Poisson(jnp.exp(log_rate)), obs=counts)
    rate = jnp.exp(log_rate[-1])
    return jnp.stack([jnp.exp(log_rate[5]), 1.0 * (rate > 8.0), 1.0 * (rate > 15.0)])


_rng = np.random.default_rng(412)
WON_X = np.linspace(0.0, 3.0, 24)
WON_Y = _rng.binomial(6, 1 / (1 + np.exp(-1.5 * np.cos(2 * WON_X))))


def gp_binomial(x: Any, y: Any) -> Any:
    """A latent Gaussian process behind shares, centred; the middle and the end of it."""
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    length = numpyro.sample("length", dist.InverseGamma(5.0, 4.0))
    covariance = _kernel(x, x, scale, length) + 1e-3 * jnp.eye(x.shape[0])
    f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(24), covariance_matrix=covariance))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Binomial(6, logits=f), obs=y)
    return jnp.stack([jax.nn.sigmoid(f[0]), 1.0 * (f[12] > -0.6), 1.0 * (f[12] > 0.5)])


# Hidden states and equations ---------------------------------------------------------------------

_rng = np.random.default_rng(413)
_state, _states = 0, []
for _ in range(60):
    _state = _state if _rng.uniform() < 0.85 else 1 - _state
    _states.append(_state)
HMM_Y = np.array([0.0, 2.0])[_states] + 0.8 * _rng.normal(size=60)


def hidden_markov(y: Any) -> Any:
    """Two states with ordered means, by the forward algorithm; the first state leaving often."""
    stay = numpyro.sample("stay", dist.Beta(2.0, 1.0).expand([2]).to_event(1))
    low = numpyro.sample("low", dist.Normal(0.0, 5.0))
    gap = numpyro.sample("gap", dist.HalfNormal(5.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    leave = 1 - stay
    moves = jnp.log(jnp.stack([jnp.stack([stay[0], leave[0]]), jnp.stack([leave[1], stay[1]])]))
    emits = dist.Normal(jnp.stack([low, low + gap]), sigma).log_prob(y[:, None])

    def step(log_alpha: Any, emit: Any) -> Any:
        return logsumexp(log_alpha[:, None] + moves, axis=0) + emit, None

    log_alpha, _ = lax.scan(step, jnp.log(0.5) + emits[0], emits[1:])
    numpyro.factor("y", logsumexp(log_alpha))
    return jnp.stack([gap, 1.0 * (stay[0] < 0.45), 1.0 * (stay[0] < 0.02)])


def _rk4(slope: Callable[[Any], Any], start: Any, step: float, per_row: int, rows: int) -> Any:
    """States at 1, 2, ... rows times step * per_row, by Runge and Kutta's classical method."""

    def one(z: Any, _: Any) -> Any:
        k1 = slope(z)
        k2 = slope(z + 0.5 * step * k1)
        k3 = slope(z + 0.5 * step * k2)
        k4 = slope(z + step * k3)
        return z + step / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4), None

    def row(z: Any, _: Any) -> Any:
        z, _ = lax.scan(one, z, None, length=per_row, unroll=per_row)
        return z, z

    return lax.scan(row, start, None, length=rows)[1]


# Hares and lynxes of Hudson's Bay, thousands, 1900 to 1911.
HARES = np.array([30.0, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22.0, 25.4, 27.1, 40.3])
LYNXES = np.array([4.0, 6.1, 9.8, 35.2, 59.4, 41.7, 19.0, 13.0, 8.3, 9.1, 7.4, 8.0])


def predator_prey(hares: Any, lynxes: Any) -> Any:
    """Lotka and Volterra; the hares' growth, and the lynxes' death rate being high."""
    start = numpyro.sample("start", dist.LogNormal(np.log(10.0), 1.0).expand([2]).to_event(1))
    growth = numpyro.sample("growth", dist.LogNormal(np.log(0.5), 0.5).expand([2]).to_event(1))
    meeting = numpyro.sample("meeting", dist.LogNormal(-3.5, 0.5).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))

    def slope(u: Any) -> Any:
        """The slope of the logarithms of the two populations."""
        hare, lynx = jnp.exp(u[0]), jnp.exp(u[1])
        return jnp.stack([growth[0] - meeting[0] * lynx, meeting[1] * hare - growth[1]])

    first = jnp.log(start)
    later = _rk4(slope, first, 0.125, 8, hares.shape[0] - 1)
    paths = jnp.concatenate([first[None], later])
    with numpyro.plate("years", hares.shape[0]):
        numpyro.sample("hares", dist.LogNormal(paths[:, 0], sigma[0]), obs=hares)
        numpyro.sample("lynxes", dist.LogNormal(paths[:, 1], sigma[1]), obs=lynxes)
    return jnp.stack([growth[0], 1.0 * (growth[1] > 1.4), 1.0 * (growth[1] > 2.0)])


# Boys in bed with influenza at a boarding school of 763, January 1978.
IN_BED = np.array([3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4])


def epidemic(in_bed: Any) -> Any:
    """Susceptible, infected, recovered; the reproduction number, and it being high."""
    beta = numpyro.sample("beta", dist.HalfNormal(3.0))
    gamma = numpyro.sample("gamma", dist.HalfNormal(1.0))
    infected = numpyro.sample("infected", dist.LogNormal(0.0, 1.0))
    dispersion = numpyro.sample("dispersion", dist.Exponential(5.0))

    def slope(z: Any) -> Any:
        new = beta * z[0] * z[1] / 763.0
        return jnp.stack([-new, new - gamma * z[1]])

    path = _rk4(slope, jnp.stack([763.0 - infected, infected]), 0.25, 4, in_bed.shape[0])
    mean = jnp.maximum(path[:, 1], 1e-3)
    with numpyro.plate("days", in_bed.shape[0]):
        numpyro.sample("in_bed", dist.NegativeBinomial2(mean, 1.0 / dispersion), obs=in_bed)
    reproduction = beta / gamma
    return jnp.stack([reproduction, 1.0 * (reproduction > 4.5), 1.0 * (reproduction > 8.0)])


MODELS = [
    PeopleModel("autoregression", "AR(2)", "time series", autoregression, (AR_Y,), 4),
    PeopleModel("arma", "ARMA(1, 1)", "time series", arma, (ARMA_Y,), 4),
    PeopleModel("local_level", "Local level of the Nile", "state space", local_level, (NILE,), 42),
    PeopleModel(
        "local_linear_trend",
        "Local linear trend",
        "state space",
        local_linear_trend,
        (TREND_Y,),
        53,
    ),
    PeopleModel("seasonal", "Trend and seasons", "time series", seasonal, (MONTH, SEASON_Y), 16),
    PeopleModel(
        "stochastic_volatility",
        "Stochastic volatility, centred",
        "state space",
        stochastic_volatility,
        (RETURNS,),
        43,
    ),
    PeopleModel("garch", "GARCH(1, 1)", "time series", garch, (GARCH_Y,), 3),
    PeopleModel(
        "vector_autoregression",
        "Vector autoregression with an LKJ correlation",
        "time series",
        vector_autoregression,
        (VAR_Y,),
        7,
    ),
    PeopleModel(
        "random_walk_counts",
        "Poisson counts with a random walk",
        "state space",
        random_walk_counts,
        (WALK_COUNTS,),
        32,
    ),
    PeopleModel(
        "gp_regression",
        "Gaussian process regression",
        "Gaussian process",
        gp_regression,
        (GP_X, GP_Y, GP_NEW),
        3,
    ),
    PeopleModel(
        "gp_poisson",
        "Poisson counts with a Gaussian process",
        "Gaussian process",
        gp_poisson,
        (COX_X, COX_Y),
        23,
    ),
    PeopleModel(
        "gp_binomial",
        "Binomial shares with a latent Gaussian process, centred",
        "Gaussian process",
        gp_binomial,
        (WON_X, WON_Y),
        26,
    ),
    PeopleModel(
        "hidden_markov",
        "Hidden Markov model by the forward algorithm",
        "hidden states",
        hidden_markov,
        (HMM_Y,),
        5,
    ),
    PeopleModel(
        "predator_prey",
        "Predator and prey by Runge–Kutta",
        "differential equation",
        predator_prey,
        (HARES, LYNXES),
        8,
    ),
    PeopleModel(
        "epidemic",
        "Influenza at a boarding school by Runge–Kutta",
        "differential equation",
        epidemic,
        (IN_BED,),
        4,
    ),
]
