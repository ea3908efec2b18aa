"""Hierarchies: partial pooling, varying intercepts and slopes, item response, meta-analysis."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from problems.eight_schools import EFFECTS, ERRORS
from problems.people.model import PeopleModel


def eight_schools(y: Any, sigma: Any) -> Any:
    """Centred; the mean effect of school A, and it being very large."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", y.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)
    return jnp.stack([theta[0], 1.0 * (theta[0] > 25.0), 1.0 * (theta[0] > 60.0)])


# Failures of ten pumps of a power plant, and thousands of hours (Gaver and O'Muircheartaigh).
PUMP_FAILURES = np.array([5, 1, 5, 14, 3, 19, 1, 1, 4, 22])
PUMP_HOURS = np.array([94.3, 15.7, 62.9, 126.0, 5.24, 31.4, 1.05, 1.05, 2.1, 10.5])


def pumps(hours: Any, failures: Any) -> Any:
    """Rates of failure, gamma distributed; the last pump's, and the first's being high."""
    alpha = numpyro.sample("alpha", dist.Exponential(1.0))
    beta = numpyro.sample("beta", dist.Gamma(0.1, 1.0))
    with numpyro.plate("pumps", hours.shape[0]):
        rate = numpyro.sample("rate", dist.Gamma(alpha, beta))
        numpyro.sample("failures", dist.Poisson(rate * hours), obs=failures)
    return jnp.stack([rate[9], 1.0 * (rate[0] > 0.14), 1.0 * (rate[0] > 0.25)])


# Yields of dyestuff, six batches of five (Davies 1967).
DYES = np.array(
    [
        [1545.0, 1440, 1440, 1520, 1580],
        [1540, 1555, 1490, 1560, 1495],
        [1595, 1550, 1605, 1510, 1560],
        [1445, 1440, 1595, 1465, 1545],
        [1595, 1630, 1515, 1635, 1625],
        [1520, 1455, 1450, 1480, 1445],
    ]
)


def dyes(y: Any) -> Any:
    """One-way random effects; the mean yield, and the sixth batch being better than the fifth."""
    mean = numpyro.sample("mean", dist.Normal(1500.0, 1000.0))
    between = numpyro.sample("between", dist.HalfCauchy(50.0))
    within = numpyro.sample("within", dist.HalfCauchy(50.0))
    with numpyro.plate("batches", 6):
        batch = numpyro.sample("batch", dist.Normal(mean, between))
    numpyro.sample("y", dist.Normal(batch[:, None], within).to_event(2), obs=y)
    gap = batch[5] - batch[4]
    return jnp.stack([mean, 1.0 * (gap > 0.0), 1.0 * (gap > 60.0)])


# Weights of thirty young rats at five ages (Gelfand et al. 1990).
_text = (
    "151 199 246 283 320 145 199 249 293 354 147 214 263 312 328 155 200 237 272 297 135 188 "
    "230 280 323 159 210 252 298 331 141 189 231 275 305 159 201 248 297 338 177 236 285 350 "
    "376 134 182 220 260 296 160 208 261 313 352 143 188 220 273 314 154 200 244 289 325 171 "
    "221 270 326 358 163 216 242 281 312 160 207 248 288 324 142 187 234 280 316 156 203 243 "
    "283 317 157 212 259 307 336 152 203 246 286 321 154 205 253 298 334 139 190 225 267 302 "
    "146 191 229 272 302 157 211 250 285 323 132 185 237 286 331 160 207 257 303 345 169 216 "
    "261 295 333 157 205 248 289 316 137 180 219 258 291 153 200 244 286 324"
)
RATS = np.array(_text.split(), dtype=float).reshape(30, 5)
RAT_AGES = np.array([8.0, 15.0, 22.0, 29.0, 36.0])


def rats(age: Any, weight: Any) -> Any:
    """Growth lines; the mean growth a day, and the fourth rat's growth being high."""
    mean_alpha = numpyro.sample("mean_alpha", dist.Normal(250.0, 100.0))
    mean_beta = numpyro.sample("mean_beta", dist.Normal(0.0, 100.0))
    sd_alpha = numpyro.sample("sd_alpha", dist.HalfCauchy(25.0))
    sd_beta = numpyro.sample("sd_beta", dist.HalfCauchy(5.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(25.0))
    with numpyro.plate("rats", weight.shape[0]):
        alpha = numpyro.sample("alpha", dist.Normal(mean_alpha, sd_alpha))
        beta = numpyro.sample("beta", dist.Normal(mean_beta, sd_beta))
    mean = alpha[:, None] + beta[:, None] * (age - 22.0)
    numpyro.sample("weight", dist.Normal(mean, sigma).to_event(2), obs=weight)
    return jnp.stack([mean_beta, 1.0 * (beta[3] > 5.9), 1.0 * (beta[3] > 6.5)])


# Efron and Morris's eighteen baseball players: hits in their first 45 times at bat.
HITS = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])
AT_BATS = np.full(18, 45)


def baseball_beta(at_bats: Any, hits: Any) -> Any:
    """Batting averages with a beta population; the mean, and the best player's being high."""
    mean = numpyro.sample("mean", dist.Uniform(0.0, 1.0))
    kappa = numpyro.sample("kappa", dist.Pareto(1.0, 1.5))
    with numpyro.plate("players", at_bats.shape[0]):
        average = numpyro.sample("average", dist.Beta(mean * kappa, (1 - mean) * kappa))
        numpyro.sample("hits", dist.Binomial(at_bats, probs=average), obs=hits)
    return jnp.stack([mean, 1.0 * (average[0] > 0.45), 1.0 * (average[0] > 0.62)])


def baseball_logit(at_bats: Any, hits: Any) -> Any:
    """The same on the log odds scale; the best player's average, and the worst's being high."""
    location = numpyro.sample("location", dist.Normal(-1.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("players", at_bats.shape[0]):
        alpha = numpyro.sample("alpha", dist.Normal(location, scale))
        numpyro.sample("hits", dist.Binomial(at_bats, logits=alpha), obs=hits)
    best, worst = jax.nn.sigmoid(alpha[0]), jax.nn.sigmoid(alpha[17])
    return jnp.stack([best, 1.0 * (worst > 0.32), 1.0 * (worst > 0.44)])


# Admissions to Berkeley by department and sex, 1973.
DEPARTMENT = np.repeat(np.arange(6), 2)
MALE = np.tile(np.array([1, 0]), 6)
APPLICATIONS = np.array([825, 108, 560, 25, 325, 593, 417, 375, 191, 393, 373, 341])
ADMITTED = np.array([512, 89, 353, 17, 120, 202, 138, 131, 53, 94, 22, 24])


def admissions_simple(department: Any, male: Any, applications: Any, admitted: Any) -> Any:
    """Varying intercepts; the chance in department A, and men having a clear advantage."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 4.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("departments", 6):
        alpha = numpyro.sample("alpha", dist.Normal(mean, sd))
    logits = alpha[department] + slope * male
    with numpyro.plate("rows", department.shape[0]):
        numpyro.sample("admitted", dist.Binomial(applications, logits=logits), obs=admitted)
    return jnp.stack([jax.nn.sigmoid(alpha[0]), 1.0 * (slope > 0.1), 1.0 * (slope > 0.28)])


def admissions_lkj(department: Any, male: Any, applications: Any, admitted: Any) -> Any:
    """Varying slopes with a correlation; men's log odds in A, and their advantage in E."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=2.0))
    with numpyro.plate("departments", 6):
        effect = numpyro.sample(
            "effect", dist.MultivariateNormal(mean, scale_tril=sd[..., None] * factor)
        )
    logits = effect[department, 0] + effect[department, 1] * male
    with numpyro.plate("rows", department.shape[0]):
        numpyro.sample("admitted", dist.Binomial(applications, logits=logits), obs=admitted)
    return jnp.stack([effect[0, 1], 1.0 * (effect[4, 1] > 0.6), 1.0 * (effect[4, 1] > 1.0)])


_rng = np.random.default_rng(201)
COUNTY = np.repeat(np.arange(15), _rng.integers(2, 12, size=15))
FLOOR = _rng.binomial(1, 0.25, size=COUNTY.size)
URANIUM = _rng.normal(size=15)
_county = 1.4 + 0.6 * URANIUM + 0.3 * _rng.normal(size=15)
RADON = _county[COUNTY] - 0.6 * FLOOR + 0.7 * _rng.normal(size=COUNTY.size)


def radon(county: Any, floor: Any, uranium: Any, y: Any) -> Any:
    """Varying intercepts with a group covariate; the floor's effect, and a county being high."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    between = numpyro.sample("between", dist.HalfCauchy(5.0))
    below = numpyro.sample("below", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(5.0))
    with numpyro.plate("counties", uranium.shape[0]):
        alpha = numpyro.sample("alpha", dist.Normal(mean + slope * uranium, between))
    with numpyro.plate("homes", y.shape[0]):
        numpyro.sample("y", dist.Normal(alpha[county] + below * floor, sigma), obs=y)
    return jnp.stack([below, 1.0 * (alpha[3] > 2.2), 1.0 * (alpha[3] > 2.7)])


_rng = np.random.default_rng(202)
CAFE = np.repeat(np.arange(12), 8)
AFTERNOON = np.tile(np.array([0, 1]), 48)
_effects = _rng.multivariate_normal([3.5, -1.0], [[1.0, -0.35], [-0.35, 0.25]], size=12)
WAIT = _effects[CAFE, 0] + _effects[CAFE, 1] * AFTERNOON + 0.6 * _rng.normal(size=96)


def varying_slopes(cafe: Any, afternoon: Any, wait: Any) -> Any:
    """Waiting times in cafes; the mean slope, and the correlation being positive."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    sd = numpyro.sample("sd", dist.Exponential(1.0).expand([2]).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=2.0))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("cafes", 12):
        effect = numpyro.sample(
            "effect", dist.MultivariateNormal(mean, scale_tril=sd[..., None] * factor)
        )
    with numpyro.plate("visits", wait.shape[0]):
        expected = effect[cafe, 0] + effect[cafe, 1] * afternoon
        numpyro.sample("wait", dist.Normal(expected, sigma), obs=wait)
    return jnp.stack([mean[1], 1.0 * (factor[1, 0] > 0.5), 1.0 * (factor[1, 0] > 0.99)])


_rng = np.random.default_rng(203)
EIGHT = np.repeat(np.arange(8), 7)
DAY = np.tile(np.linspace(-1.0, 1.0, 7), 8)
_a, _b = 1.0 + 0.8 * _rng.normal(size=8), 1.2 + 0.5 * _rng.normal(size=8)
EIGHT_Y = _a[EIGHT] + _b[EIGHT] * DAY + 0.6 * _rng.normal(size=56)


def hierarchical_linear(group: Any, x: Any, y: Any) -> Any:
    """A line for each of eight groups; the mean slope, and the first group's being very low."""
    mean_a = numpyro.sample("mean_a", dist.Normal(0.0, 10.0))
    mean_b = numpyro.sample("mean_b", dist.Normal(0.0, 10.0))
    sd_a = numpyro.sample("sd_a", dist.HalfCauchy(5.0))
    sd_b = numpyro.sample("sd_b", dist.HalfCauchy(5.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(5.0))
    with numpyro.plate("groups", 8):
        a = numpyro.sample("a", dist.Normal(mean_a, sd_a))
        b = numpyro.sample("b", dist.Normal(mean_b, sd_b))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(a[group] + b[group] * x, sigma), obs=y)
    return jnp.stack([mean_b, 1.0 * (b[0] < -0.5), 1.0 * (b[0] < -1.5)])


# Germination of seeds on 21 plates (Crowder 1978).
SEEDS = np.array([10, 23, 23, 26, 17, 5, 53, 55, 32, 46, 10, 8, 10, 8, 23, 0, 3, 22, 15, 32, 3])
PLATE_SIZES = np.array(
    [39, 62, 81, 51, 39, 6, 74, 72, 51, 79, 13, 16, 30, 28, 45, 4, 12, 41, 30, 51, 7]
)
SEED_TYPE = np.repeat(np.array([0, 1]), [11, 10])
ROOT_TYPE = np.repeat(np.array([0, 1, 0, 1]), [5, 6, 5, 5])


def seeds(total: Any, seed: Any, root: Any, germinated: Any) -> Any:
    """A binomial model with random effects; the root's effect, and the seed's being large."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 100.0).expand([4]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    with numpyro.plate("plates", total.shape[0]):
        effect = numpyro.sample("effect", dist.Normal(0.0, sigma))
        logits = alpha[0] + alpha[1] * seed + alpha[2] * root + alpha[3] * seed * root + effect
        numpyro.sample("germinated", dist.Binomial(total, logits=logits), obs=germinated)
    return jnp.stack([alpha[2], 1.0 * (alpha[1] > 0.8), 1.0 * (alpha[1] > 2.0)])


_rng = np.random.default_rng(204)
PATIENT = np.repeat(np.arange(20), 4)
TREATED = _rng.permutation(np.repeat([0, 1], 10))
_u = 0.7 * _rng.normal(size=20)
SEIZURES = _rng.poisson(np.exp(1.5 - 0.9 * TREATED[PATIENT] + _u[PATIENT]))


def poisson_glmm(patient: Any, treated: Any, counts: Any) -> Any:
    """Seizures with an effect of each patient; the treatment's, and it doing harm."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 10.0))
    effect = numpyro.sample("effect", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    with numpyro.plate("patients", treated.shape[0]):
        u = numpyro.sample("u", dist.Normal(0.0, sigma))
    log_rate = intercept + effect * treated[patient] + u[patient]
    with numpyro.plate("visits", counts.shape[0]):
        numpyro.sample("counts", dist.Poisson(jnp.exp(log_rate)), obs=counts)
    return jnp.stack([intercept, 1.0 * (effect > -0.2), 1.0 * (effect > 1.2)])


FUNNEL_Y = np.array([1.9, -0.8, 2.7, 0.4, -2.2, 1.1, 3.0, -0.3, 0.9])


def funnel_with_data(y: Any) -> Any:
    """Neal's funnel, observed with noise; the scale, and the third value being large."""
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", y.shape[0]):
        x = numpyro.sample("x", dist.Normal(0.0, jnp.exp(v / 2)))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
    return jnp.stack([jnp.exp(v / 2), 1.0 * (x[2] > 4.0), 1.0 * (x[2] > 6.0)])


# The thirteen trials of the BCG vaccine (Colditz et al. 1994).
_cases = np.array([4, 6, 3, 62, 33, 180, 8, 505, 29, 17, 186, 5, 27])
_vaccinated = np.array(
    [123, 306, 231, 13598, 5069, 1541, 2545, 88391, 7499, 1716, 50634, 2498, 16913]
)
_controls = np.array([11, 29, 11, 248, 47, 372, 10, 499, 45, 65, 141, 3, 29])
_unvaccinated = np.array(
    [139, 303, 220, 12867, 5808, 1451, 629, 88391, 7277, 1665, 27338, 2341, 17854]
)
BCG_EFFECT = np.log(_cases / _vaccinated) - np.log(_controls / _unvaccinated)
BCG_ERROR = np.sqrt(1 / _cases - 1 / _vaccinated + 1 / _controls - 1 / _unvaccinated)


def meta_analysis(effect: Any, error: Any) -> Any:
    """Risk ratios of trials with flat priors; the mean effect, and it being none or worse."""
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    with numpyro.plate("trials", effect.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("effect", dist.Normal(theta, error), obs=effect)
    return jnp.stack([mu, 1.0 * (mu > -0.2), 1.0 * (mu > 0.6)])


# Circumferences of five orange trees (Draper and Smith).
TREE_AGES = np.array([118.0, 484, 664, 1004, 1231, 1372, 1582])
TREES = np.array(
    [
        [30.0, 58, 87, 115, 120, 142, 145],
        [33, 69, 111, 156, 172, 203, 203],
        [30, 51, 75, 108, 115, 139, 140],
        [32, 62, 112, 167, 179, 209, 214],
        [30, 49, 81, 125, 142, 174, 177],
    ]
)


def orange_trees(age: Any, y: Any) -> Any:
    """Logistic growth curves; the mean final size, and the first tree's being large."""
    mean = numpyro.sample("mean", dist.Normal(200.0, 100.0))
    between = numpyro.sample("between", dist.HalfCauchy(25.0))
    middle = numpyro.sample("middle", dist.Normal(700.0, 300.0))
    width = numpyro.sample("width", dist.LogNormal(6.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(10.0))
    with numpyro.plate("trees", y.shape[0]):
        final = numpyro.sample("final", dist.Normal(mean, between))
    curve = final[:, None] * jax.nn.sigmoid((age - middle) / width)
    numpyro.sample("y", dist.Normal(curve, sigma).to_event(2), obs=y)
    return jnp.stack([mean, 1.0 * (final[0] > 185.0), 1.0 * (final[0] > 240.0)])


_rng = np.random.default_rng(205)
_ability = _rng.normal(size=24)
_difficulty = np.linspace(-1.5, 1.5, 8)
ANSWERS = (
    _rng.uniform(size=(24, 8)) < 1 / (1 + np.exp(-(_ability[:, None] - _difficulty)))
).astype(int)


def item_response_1pl(answers: Any) -> Any:
    """Rasch's model; how much harder the last item is, and the first person being very able."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(2.0))
    with numpyro.plate("people", 24):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
    with numpyro.plate("items", 8):
        difficulty = numpyro.sample("difficulty", dist.Normal(mean, spread))
    logits = ability[:, None] - difficulty
    numpyro.sample("answers", dist.Bernoulli(logits=logits).to_event(2), obs=answers)
    harder = difficulty[7] - difficulty[0]
    return jnp.stack([harder, 1.0 * (ability[0] > 1.0), 1.0 * (ability[0] > 2.5)])


_rng = np.random.default_rng(206)
_ability = _rng.normal(size=40)
_slope = np.array([0.8, 1.2, 1.6, 1.0, 2.0, 0.6])
ANSWERS_2PL = (
    _rng.uniform(size=(40, 6))
    < 1 / (1 + np.exp(-_slope * (_ability[:, None] - np.linspace(-1.0, 1.0, 6))))
).astype(int)


def item_response_2pl(answers: Any) -> Any:
    """Items with slopes; the hardest item, and the first one discriminating very well."""
    with numpyro.plate("items", 6):
        slope = numpyro.sample("slope", dist.LogNormal(0.0, 0.5))
        difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 2.0))
    with numpyro.plate("people", 40):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
    logits = slope * (ability[:, None] - difficulty)
    numpyro.sample("answers", dist.Bernoulli(logits=logits).to_event(2), obs=answers)
    return jnp.stack([difficulty[5], 1.0 * (slope[0] > 2.0), 1.0 * (slope[0] > 6.0)])


_rng = np.random.default_rng(207)
_strength = np.array([1.2, 0.8, 0.4, 0.1, -0.2, -0.5, -0.8, -1.0])
HOME, AWAY = (side.ravel() for side in np.triu_indices(8, 1))
GAMES = np.full(28, 4)
WINS = _rng.binomial(GAMES, 1 / (1 + np.exp(_strength[AWAY] - _strength[HOME])))


def bradley_terry(home: Any, away: Any, games: Any, wins: Any) -> Any:
    """Strengths of eight teams; the best against the worst, and the last beating the first."""
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("teams", 8):
        strength = numpyro.sample("strength", dist.Normal(0.0, scale))
    logits = strength[home] - strength[away]
    with numpyro.plate("pairs", games.shape[0]):
        numpyro.sample("wins", dist.Binomial(games, logits=logits), obs=wins)
    gap = strength[7] - strength[0]
    return jnp.stack([-gap, 1.0 * (gap > -0.2), 1.0 * (gap > 0.8)])


def ab_test(visitors: Any, sales: Any) -> Any:
    """Two pages; the relative gain of the second, and it being worse than the first."""
    with numpyro.plate("pages", 2):
        rate = numpyro.sample("rate", dist.Beta(1.0, 1.0))
        numpyro.sample("sales", dist.Binomial(visitors, probs=rate), obs=sales)
    gain = rate[1] - rate[0]
    return jnp.stack([rate[1] / rate[0], 1.0 * (gain < 0.005), 1.0 * (gain < -0.02)])


AB_VISITORS, AB_SALES = np.array([1200, 1150]), np.array([61, 92])

_rng = np.random.default_rng(208)
_shares = _rng.dirichlet(np.array([6.0, 4.0, 2.0]), size=8)
VOTES = np.stack([_rng.multinomial(40, share) for share in _shares])


def dirichlet_multinomial(votes: Any) -> Any:
    """Shares of three parties in eight towns; a party's overall, and a town's being high."""
    center = numpyro.sample("center", dist.Dirichlet(jnp.ones(3)))
    kappa = numpyro.sample("kappa", dist.LogNormal(2.0, 1.0))
    with numpyro.plate("towns", 8):
        share = numpyro.sample("share", dist.Dirichlet(kappa * center))
        numpyro.sample("votes", dist.Multinomial(40, probs=share), obs=votes)
    return jnp.stack([center[0], 1.0 * (share[2, 2] > 0.2), 1.0 * (share[2, 2] > 0.38)])


MODELS = [
    PeopleModel(
        "eight_schools",
        "Eight schools, centred",
        "hierarchy",
        eight_schools,
        (EFFECTS, ERRORS),
        10,
    ),
    PeopleModel(
        "pumps",
        "Failures of pumps, a gamma hierarchy",
        "hierarchy",
        pumps,
        (PUMP_HOURS, PUMP_FAILURES),
        12,
    ),
    PeopleModel("dyes", "Yields of dyestuff, random effects", "hierarchy", dyes, (DYES,), 9),
    PeopleModel("rats", "Growth lines of thirty rats", "growth", rats, (RAT_AGES, RATS), 65),
    PeopleModel(
        "baseball_beta",
        "Batting averages, a beta hierarchy",
        "hierarchy",
        baseball_beta,
        (AT_BATS, HITS),
        20,
    ),
    PeopleModel(
        "baseball_logit",
        "Batting averages, a logit hierarchy, centred",
        "hierarchy",
        baseball_logit,
        (AT_BATS, HITS),
        20,
    ),
    PeopleModel(
        "admissions_simple",
        "Admissions to Berkeley, varying intercepts",
        "mixed model",
        admissions_simple,
        (DEPARTMENT, MALE, APPLICATIONS, ADMITTED),
        9,
    ),
    PeopleModel(
        "admissions_lkj",
        "Admissions to Berkeley, varying slopes with an LKJ correlation",
        "mixed model",
        admissions_lkj,
        (DEPARTMENT, MALE, APPLICATIONS, ADMITTED),
        17,
    ),
    PeopleModel(
        "radon",
        "Radon in homes, varying intercepts with a group covariate",
        "mixed model",
        radon,
        (COUNTY, FLOOR, URANIUM, RADON),
        20,
    ),
    PeopleModel(
        "varying_slopes",
        "Varying slopes with an LKJ correlation (cafes)",
        "mixed model",
        varying_slopes,
        (CAFE, AFTERNOON, WAIT),
        30,
    ),
    PeopleModel(
        "hierarchical_linear",
        "Hierarchical linear regression, centred",
        "mixed model",
        hierarchical_linear,
        (EIGHT, DAY, EIGHT_Y),
        21,
    ),
    PeopleModel(
        "seeds",
        "Germination of seeds, binomial with random effects",
        "mixed model",
        seeds,
        (PLATE_SIZES, SEED_TYPE, ROOT_TYPE, SEEDS),
        26,
    ),
    PeopleModel(
        "poisson_glmm",
        "Poisson counts with an effect of each patient",
        "mixed model",
        poisson_glmm,
        (PATIENT, TREATED, SEIZURES),
        23,
    ),
    PeopleModel(
        "funnel_with_data",
        "Neal's funnel with data",
        "hierarchy",
        funnel_with_data,
        (FUNNEL_Y,),
        10,
    ),
    PeopleModel(
        "meta_analysis",
        "Meta-analysis of the BCG vaccine",
        "hierarchy",
        meta_analysis,
        (BCG_EFFECT, BCG_ERROR),
        15,
    ),
    PeopleModel(
        "orange_trees",
        "Growth curves of orange trees",
        "growth",
        orange_trees,
        (TREE_AGES, TREES),
        10,
    ),
    PeopleModel(
        "item_response_1pl",
        "Item response, one parameter",
        "item response",
        item_response_1pl,
        (ANSWERS,),
        34,
    ),
    PeopleModel(
        "item_response_2pl",
        "Item response, two parameters",
        "item response",
        item_response_2pl,
        (ANSWERS_2PL,),
        52,
    ),
    PeopleModel(
        "bradley_terry",
        "Bradley–Terry strengths of teams",
        "paired comparison",
        bradley_terry,
        (HOME, AWAY, GAMES, WINS),
        9,
    ),
    PeopleModel("ab_test", "A/B test", "counts", ab_test, (AB_VISITORS, AB_SALES), 2),
    PeopleModel(
        "dirichlet_multinomial",
        "Shares of parties in towns, a Dirichlet hierarchy",
        "counts",
        dirichlet_multinomial,
        (VOTES,),
        19,
    ),
]
