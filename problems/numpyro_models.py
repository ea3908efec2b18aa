"""Models in the style of NumPyro's documentation, each with a quantity of interest to return.

They are written as a user of NumPyro would write them, with the features that its examples show:
plates, reparametrisation, `scan`, enumeration, masks, factors, mixtures, an ODE. What is known of
their answers is in `numpyro_truths.py`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from jax.experimental.ode import odeint
from jax.scipy.special import logsumexp
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints, transforms
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

from problems.eight_schools import EFFECTS, ERRORS

# Hierarchies -------------------------------------------------------------------------------------

SCHOOLS = {"y": EFFECTS, "sigma": ERRORS}


def _eight_schools(sigma: Any, y: Any = None) -> Any:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", sigma.shape[0]):
        affine = transforms.AffineTransform(mu, tau)
        theta = numpyro.sample("theta", dist.TransformedDistribution(dist.Normal(0.0, 1.0), affine))
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)
    return theta[0] > 25


eight_schools = handlers.reparam(_eight_schools, config={"theta": TransformReparam()})

AT_BATS, HITS = np.full(5, 45), np.array([18, 17, 16, 10, 7])


def baseball(at_bats: Any, hits: Any = None) -> Any:
    """Batting averages, partially pooled; the chance that the first player's is above 0.42."""
    m = numpyro.sample("m", dist.Uniform(0, 1))
    kappa = numpyro.sample("kappa", dist.Pareto(1, 1.5))
    with numpyro.plate("players", at_bats.shape[0]):
        phi = numpyro.sample("phi", dist.Beta(m * kappa, (1 - m) * kappa))
        numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)
    return phi[0] > 0.42


PATIENT = np.repeat(np.arange(4), 3)
WEEK = np.tile(np.array([-1.0, 0.0, 1.0]), 4)
LUNG = np.array([1.4, 0.9, 0.6, 0.3, 0.1, -0.4, -0.2, -0.9, -1.3, 0.5, 0.6, 0.2])


def lung_capacity(patient: Any, week: Any, capacity: Any = None) -> Any:
    """A line for each patient; the chance that the second one's rises."""
    mu_a = numpyro.sample("mu_a", dist.Normal(0.0, 1.0))
    sigma_a = numpyro.sample("sigma_a", dist.HalfNormal(1.0))
    mu_b = numpyro.sample("mu_b", dist.Normal(0.0, 1.0))
    sigma_b = numpyro.sample("sigma_b", dist.HalfNormal(1.0))
    with numpyro.plate("patients", 4):
        a = numpyro.sample("a", dist.Normal(mu_a, sigma_a))
        b = numpyro.sample("b", dist.Normal(mu_b, sigma_b))
    sigma = numpyro.sample("sigma", dist.HalfNormal(0.5))
    mean = numpyro.deterministic("mean", a[patient] + b[patient] * week)
    with numpyro.plate("data", len(patient)):
        numpyro.sample("obs", dist.Normal(mean, sigma), obs=capacity)
    return b[1] > 0.0


ADMISSIONS = {
    "department": np.repeat(np.arange(6), 2),
    "male": np.tile(np.array([1, 0]), 6),
    "applications": np.array([825, 108, 560, 25, 325, 593, 417, 375, 191, 393, 373, 341]),
    "admitted": np.array([512, 89, 353, 17, 120, 202, 138, 131, 53, 94, 22, 24]),
}


def admissions(department: Any, male: Any, applications: Any, admitted: Any = None) -> Any:
    """Varying intercepts and slopes with a correlation; how much likelier men are admitted in E."""
    mean = numpyro.sample("mean", dist.Normal(0, 1).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(1).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=2.0))
    with numpyro.plate("departments", 6):
        effect = numpyro.sample(
            "effect", dist.MultivariateNormal(mean, scale_tril=sd[..., None] * factor)
        )
    logits = effect[department, 0] + effect[department, 1] * male
    numpyro.sample("admitted", dist.Binomial(applications, logits=logits), obs=admitted)
    return jnp.exp(effect[4, 1])


def _funnel() -> Any:
    scale = numpyro.sample("scale", dist.Normal(0, 3))
    x = numpyro.sample("x", dist.Normal(0, jnp.exp(scale / 2)).expand([3]).to_event(1))
    return x[0] > 20


funnel = handlers.reparam(_funnel, config={"x": LocScaleReparam(centered=0)})

# Regressions -------------------------------------------------------------------------------------

_rng = np.random.default_rng(20)
COVARIATES = _rng.normal(size=(12, 3))
RESPONSE = COVARIATES @ np.array([1.5, 0.0, 0.0]) + 0.5 * _rng.normal(size=12)


def horseshoe(x: Any, y: Any = None) -> Any:
    """Sparse regression; the squared error of predicting zero for a new row."""
    dimension = x.shape[1]
    local = numpyro.sample("local", dist.HalfCauchy(1.0).expand([dimension]).to_event(1))
    overall = numpyro.sample("overall", dist.HalfCauchy(1.0))
    raw = numpyro.sample("raw", dist.Normal(0.0, 1.0).expand([dimension]).to_event(1))
    beta = numpyro.deterministic("beta", overall * local * raw)
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, 1.0 / jnp.sqrt(precision)), obs=y)
    return jnp.sum(jnp.array([0.5, 1.0, -1.0]) * beta) ** 2


GRADES_X = np.array([-1.5, -1.0, -0.8, -0.3, 0.0, 0.2, 0.5, 1.0, 1.4, 1.8])
GRADES = np.array([0, 0, 1, 0, 1, 1, 2, 1, 2, 2])


def ordinal(x: Any, grade: Any = None) -> Any:
    """Ordered logistic regression; the chance of the top grade for a poor student."""
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    cuts = numpyro.sample(
        "cuts",
        dist.TransformedDistribution(
            dist.Normal(0, 1).expand([2]).to_event(1), transforms.OrderedTransform()
        ),
    )
    with numpyro.plate("students", len(x)):
        numpyro.sample("grade", dist.OrderedLogistic(slope * x, cuts), obs=grade)
    return jax.nn.sigmoid(slope * -1.0 - cuts[1])


def ordinal_with_flat_cuts(x: Any, grade: Any = None) -> Any:
    """The same with an improper prior on the cut points, as a tutorial has it."""
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    support = constraints.ordered_vector
    cuts = numpyro.sample("cuts", dist.ImproperUniform(support, (), event_shape=(2,)))
    with numpyro.plate("students", len(x)):
        numpyro.sample("grade", dist.OrderedLogistic(slope * x, cuts), obs=grade)
    return jax.nn.sigmoid(slope * -1.0 - cuts[1])


LIFETIMES = np.array([2.1, 0.4, 3.0, 1.2, 0.9, 3.0, 3.0, 2.6, 1.7, 0.7])
IS_CENSORED = LIFETIMES == 3.0


def survival(time: Any, is_censored: Any) -> Any:
    """Weibull lifetimes, censored at 3; the chance that a new one is above 6."""
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 0.5))
    scale = numpyro.sample("scale", dist.LogNormal(1.0, 1.0))
    with numpyro.plate("parts", len(time)):
        with handlers.mask(mask=~is_censored):
            numpyro.sample("time", dist.Weibull(scale, shape), obs=time)
        with handlers.mask(mask=is_censored):
            numpyro.factor("survived", -((time / scale) ** shape))
    return jnp.exp(-((6.0 / scale) ** shape))


def censored_lifetimes(time: Any, is_censored: Any) -> Any:
    """Exponential lifetimes by NumPyro's own censored distribution; a new one above 8."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 2.0))
    with numpyro.plate("parts", len(time)):
        lifetime = dist.RightCensoredDistribution(dist.Exponential(rate), censored=is_censored)
        numpyro.sample("time", lifetime, obs=time)
    return jnp.exp(-8.0 * rate)


AGE = np.array([-1.2, np.nan, 0.3, 0.9, np.nan, -0.4, 1.6])
SCORE = np.array([-1.9, 2.4, 0.8, 1.1, -0.6, -0.2, 2.9])


def imputation(age: Any, score: Any = None) -> Any:
    """Missing values of a covariate are latent; the first of them being above 2.

    The mask takes the factor of `age_missing` away, because `age` has it again.
    """
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    missing = np.nonzero(np.isnan(age))[0]
    law = dist.Normal(mu, 1.0)
    found = numpyro.sample("age_missing", law.expand([len(missing)]).to_event(1).mask(False))
    age = jnp.asarray(age).at[missing].set(found)
    numpyro.sample("age", law.expand([7]).to_event(1), obs=age)
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    with numpyro.plate("rows", len(SCORE)):
        numpyro.sample("score", dist.Normal(slope * age, 0.7), obs=score)
    return found[0] > 2.0


COUNTS = np.array([0, 0, 3, 0, 1, 0, 4, 2, 0, 0, 5, 0])


def zero_inflated(counts: Any) -> Any:
    """The chance of six or more in a new count."""
    gate = numpyro.sample("gate", dist.Beta(1.0, 1.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("days", len(counts)):
        numpyro.sample("counts", dist.ZeroInflatedPoisson(gate, rate), obs=counts)
    return (1 - gate) * jax.scipy.special.gammainc(6.0, rate)


GP_X = np.array([-2.0, -1.5, -0.7, 0.1, 0.6, 1.3, 2.0])
GP_Y = np.array([-1.1, -1.3, -0.4, 0.6, 1.0, 0.8, -0.2])


def _kernel(x: Any, z: Any, variance: Any, length: Any, noise: Any = None) -> Any:
    covariance = variance * jnp.exp(-0.5 * ((x[:, None] - z[None, :]) / length) ** 2)
    return covariance if noise is None else covariance + (noise + 1e-6) * jnp.eye(x.shape[0])


def gaussian_process(x: Any, y: Any = None) -> Any:
    """The chance that the function is above 1.5 at 0.9, whatever its length and scale."""
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))
    length = numpyro.sample("length", dist.LogNormal(0.0, 1.0))
    covariance = _kernel(x, x, variance, length, noise)
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)
    across = _kernel(jnp.array([0.9]), x, variance, length)[0]
    mean = across @ jnp.linalg.solve(covariance, y)
    spread = jnp.sqrt(variance - across @ jnp.linalg.solve(covariance, across) + 1e-6)
    return jax.scipy.stats.norm.sf(1.5, mean, spread)


NET_X = np.linspace(-1.0, 1.0, 8)
NET_Y = np.array([0.9, 0.5, 0.1, -0.1, 0.1, 0.2, 0.6, 0.8])


def neural_network(x: Any, y: Any = None) -> Any:
    """Two layers of three units; the predictive density of 1.0 at 1.5, outside the data."""
    features = jnp.stack([jnp.ones(len(x)), x], axis=1)
    w1 = numpyro.sample("w1", dist.Normal(jnp.zeros((2, 3)), jnp.ones((2, 3))))
    w2 = numpyro.sample("w2", dist.Normal(jnp.zeros((3, 1)), jnp.ones((3, 1))))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    sigma = 1.0 / jnp.sqrt(precision)

    def predict(inputs: Any) -> Any:
        return (jnp.tanh(inputs @ w1) @ w2)[:, 0]

    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(predict(features), sigma), obs=y)
    mean = predict(jnp.array([[1.0, 1.5]]))[0]
    return jnp.exp(dist.Normal(mean, sigma).log_prob(1.0))


# Sequences ---------------------------------------------------------------------------------------

SERIES = np.array([0.2, 0.5, 0.1, -0.3, 0.4, 0.9, 1.2, 0.7, 0.3, 0.6, 1.1, 0.8])


def autoregression(y: Any, num_ahead: int) -> Any:
    """AR(1) by NumPyro's scan, the future being latent; the last step above 2.5."""
    alpha = numpyro.sample("alpha", dist.Normal(0, 1))
    phi = numpyro.sample("phi", dist.Uniform(-1, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))

    def step(previous: Any, _: Any) -> Any:
        now = numpyro.sample("y", dist.Normal(alpha + phi * previous, sigma))
        return now, now

    with handlers.condition(data={"y": jnp.asarray(y)[1:]}):
        last, _ = scan(step, y[0], None, length=len(y) - 1)

    def ahead(previous: Any, _: Any) -> Any:
        now = numpyro.sample("future", dist.Normal(alpha + phi * previous, sigma))
        return now, now

    last, _ = scan(ahead, last, None, length=num_ahead)
    return last > 2.5


RETURNS = np.random.default_rng(3).standard_t(6, size=24) * np.exp(np.linspace(-1, 0.5, 24))


def stochastic_volatility(returns: Any) -> Any:
    """A random walk of log volatilities; the chance of a loss beyond 4 tomorrow."""
    step_size = numpyro.sample("step_size", dist.Exponential(5.0))
    walk = dist.GaussianRandomWalk(scale=step_size, num_steps=len(returns))
    s = numpyro.sample("s", walk)
    nu = numpyro.sample("nu", dist.Exponential(0.1))
    law = dist.StudentT(2.0 + nu, loc=0.0, scale=jnp.exp(s))
    numpyro.sample("r", law.to_event(1), obs=returns)
    return jnp.exp(s[-1]) > 3.0


HARES = np.array([30.0, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1])
LYNXES = np.array([4.0, 6.1, 9.8, 35.2, 59.4, 41.7, 19.0])


def predator_prey(y: Any) -> Any:
    """Lotka and Volterra's equations; the chance that hares are above 40 two years on."""

    def slope(z: Any, _: Any, theta: Any) -> Any:
        hares, lynxes = z
        alpha, beta, gamma, delta = theta
        return jnp.stack([(alpha - beta * lynxes) * hares, (delta * hares - gamma) * lynxes])

    start = numpyro.sample("start", dist.LogNormal(jnp.log(10), 1).expand([2]))
    theta = numpyro.sample(
        "theta",
        dist.TruncatedNormal(
            low=0.0, loc=jnp.array([1.0, 0.05, 1.0, 0.05]), scale=jnp.array([0.2, 0.01, 0.2, 0.01])
        ),
    )
    times = jnp.append(jnp.arange(float(y.shape[0])), y.shape[0] + 1.0)
    z = odeint(slope, start, times, theta, rtol=1e-5, atol=1e-4, mxstep=500)
    sigma = numpyro.sample("sigma", dist.LogNormal(-1, 1).expand([2]))
    numpyro.sample("y", dist.LogNormal(jnp.log(z[:-1]), sigma), obs=y)
    return z[-1, 0] > 40.0


WORDS = np.array([0, 0, 1, 2, 2, 2, 0, 2])


def hidden_markov(words: Any) -> Any:
    """A hidden Markov model by the forward algorithm; the chance that the next word is 1."""
    with numpyro.plate("states", 2):
        moves = numpyro.sample("moves", dist.Dirichlet(jnp.array([1.0, 2.0])))
        emits = numpyro.sample("emits", dist.Dirichlet(jnp.array([2.0, 1.0, 1.0])))

    def step(log_alpha: Any, word: Any) -> Any:
        moved = logsumexp(log_alpha[:, None] + jnp.log(moves), axis=0)
        return moved + jnp.log(emits[:, word]), None

    start = jnp.log(jnp.array([0.8, 0.2])) + jnp.log(emits[:, words[0]])
    log_alpha, _ = lax.scan(step, start, words[1:])
    total = logsumexp(log_alpha)
    numpyro.factor("words", total)
    return jnp.exp(log_alpha - total) @ moves @ emits[:, 1]


def hidden_markov_enumerated(words: Any) -> Any:
    """The same with its states as sites, marked for enumeration; whether the last state is 1."""
    with numpyro.plate("states", 2):
        moves = numpyro.sample("moves", dist.Dirichlet(jnp.array([1.0, 2.0])))
        emits = numpyro.sample("emits", dist.Dirichlet(jnp.array([2.0, 1.0, 1.0])))
    first = numpyro.sample(
        "first", dist.Categorical(jnp.array([0.8, 0.2])), infer={"enumerate": "parallel"}
    )
    numpyro.sample("first_word", dist.Categorical(emits[first]), obs=words[0])

    def step(state: Any, word: Any) -> Any:
        law = dist.Categorical(moves[state])
        state = numpyro.sample("state", law, infer={"enumerate": "parallel"})
        numpyro.sample("word", dist.Categorical(emits[state]), obs=word)
        return state, None

    last, _ = scan(step, first, words[1:])
    return last == 1


CAPTURES = np.array(
    [[1, 1, 0, 0], [1, 0, 1, 1], [0, 1, 1, 0], [1, 0, 0, 0], [0, 1, 1, 1], [1, 1, 1, 0]]
)


def capture_recapture(history: Any) -> Any:
    """Cormack, Jolly and Seber's model, animals being alive or not; survival above 0.9."""
    count = history.shape[0]
    phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
    rho = numpyro.sample("rho", dist.Uniform(0.0, 1.0))

    def step(carry: Any, y: Any) -> Any:
        was_seen, z = carry
        with numpyro.plate("animals", count, dim=-1), handlers.mask(mask=was_seen):
            z = numpyro.sample("z", dist.Bernoulli(phi * z), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Bernoulli(rho * z), obs=y)
        # Every animal is alive when it is first seen.
        return (was_seen | (y == 1), jnp.where(was_seen, z, 1)), None

    start = (history[:, 0] == 1, jnp.ones(count, dtype=int))
    scan(step, start, jnp.swapaxes(history[:, 1:], 0, 1))
    return phi > 0.9


# Discrete structure ------------------------------------------------------------------------------

CLUSTERED = np.array([-2.1, -1.6, -1.9, 0.4, 1.4, 2.2, 1.8, 1.1])


def mixture(y: Any) -> Any:
    """Two normal components, whose labels can be exchanged; the predictive density at 4."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("components", 2):
        locs = numpyro.sample("locs", dist.Normal(0.0, 3.0))
    law = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(locs, 0.8))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", law, obs=y)
    return jnp.exp(law.log_prob(4.0))


DOCUMENTS = np.array([[0, 1, 0], [2, 3, 2], [0, 2, 3]])


def latent_dirichlet(documents: Any) -> Any:
    """Two topics of four words; whether the last document's first two words share a topic."""
    num_documents, length = documents.shape
    with numpyro.plate("topics", 2):
        vocabulary = numpyro.sample("vocabulary", dist.Dirichlet(0.5 * jnp.ones(4)))
    with numpyro.plate("documents", num_documents):
        shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(2)))
        with numpyro.plate("positions", length):
            law = dist.Categorical(shares)
            topic = numpyro.sample("topic", law, infer={"enumerate": "parallel"})
            numpyro.sample("words", dist.Categorical(vocabulary[topic]), obs=documents.T)
    return topic[0, 2] == topic[1, 2]


ACCIDENTS = np.array([4, 5, 4, 1, 0, 4, 3, 4, 0, 6, 1, 0, 1, 1, 0, 2])


def change_point(counts: Any) -> Any:
    """Coal mining accidents by year, with a change in a year that is latent; a change before 8."""
    early = numpyro.sample("early", dist.Exponential(1.0))
    late = numpyro.sample("late", dist.Exponential(1.0))
    year = numpyro.sample("year", dist.DiscreteUniform(0, len(counts) - 1))
    rate = jnp.where(jnp.arange(len(counts)) < year, early, late)
    with numpyro.plate("years", len(counts)):
        numpyro.sample("counts", dist.Poisson(rate), obs=counts)
    return year < 8


def shells() -> Any:
    """Two thin Gaussian shells in the plane, by a factor; the outer rim of the left one."""
    x = numpyro.sample("x", dist.Uniform(-6, 6).expand([2]).to_event(1))
    centers = jnp.array([[-3.5, 0.0], [3.5, 0.0]])
    radii = jnp.sqrt(jnp.sum((x - centers) ** 2, axis=1))
    log_probs = dist.Normal(2.0, 0.1).log_prob(radii)
    numpyro.factor("shells", logsumexp(log_probs + jnp.log(jnp.array([0.3, 0.7]))))
    return radii[0] < 2.3
