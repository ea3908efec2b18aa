"""The problems as PyMC models, non-centred where PyMC's documentation says so.

Each builder runs inside a model and returns sign and log|f| of the target. SIR's ODE stays in JAX,
wrapped as an operation of PyTensor.
"""

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import wrap_jax

from benchmarks.peers.protocol import LOG_SMALLEST
from problems.radon import CODE, LIMIT, SHARPNESS
from problems.sir import RECOVERY, new_infections


def build(problem, sign=None):
    """γ, or γ·max(sign·f, 0) with f as a potential."""
    with pm.Model() as model:
        found, log_magnitude = BUILDERS[problem.name](*problem.args)
        if sign is not None:
            log_part = pt.switch(pt.gt(found * sign, 0), log_magnitude, LOG_SMALLEST)
            pm.Potential("f", log_part)
    return model


def _gaussian(y):
    x = pm.Normal("x", 0.0, 1.0, shape=len(y))
    pm.Normal("y", x, 1.0, observed=y)
    return 1.0, pm.logp(pm.Normal.dist(x, math.sqrt(0.5)), -y).sum()


def _banana():
    x1, x2 = pm.Normal("x1", 0.0, 4.0), pm.Normal("x2", 0.0, 4.0)
    curved = x2 / 2 + 0.03 * (x1**2 - 100.0)
    pm.Potential("banana", -0.5 * (0.03 * x1**2 + curved**2))
    offset = x1 - 2.0
    return pt.sign(offset), 3.0 * pt.log(pt.abs(offset)) + _log_sigmoid(-50.0 * (x2 + 5.0))


def _sir(y):
    beta = pm.TruncatedNormal("beta", 2.0, 1.5, lower=0.0)
    i0 = pm.TruncatedNormal("i0", 10.0, 10.0, lower=0.0, upper=1000.0)
    mean = pt.maximum(wrap_jax(new_infections)(beta, 10.0 * i0), 1e-10)
    pm.NegativeBinomial("y", mu=mean, alpha=0.5, observed=y)
    return 1.0, math.log(1e12) + _log_sigmoid(10.0 * beta / RECOVERY - 30.0)


def _radon(county, floor, log_radon):
    mu_alpha, mu_beta = pm.Normal("mu_alpha", 0.0, 10.0), pm.Normal("mu_beta", 0.0, 10.0)
    alpha, beta = (
        pm.Deterministic(name, mean + sd * pm.Normal(f"{name}_raw", shape=int(county.max()) + 1))
        for name, mean, sd in (
            ("alpha", mu_alpha, CODE.intercept_sd),
            ("beta", mu_beta, CODE.slope_sd),
        )
    )
    epsilon = pm.HalfCauchy("epsilon", 5.0)
    pm.Normal("y", alpha[county] + beta[county] * floor, pt.sqrt(epsilon), observed=log_radon)
    return 1.0, _log_sigmoid(-SHARPNESS * (pt.exp(alpha) - LIMIT)).sum()


def _schools(y, sigma):
    mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
    theta = pm.Deterministic("theta", mu + tau * pm.Normal("theta_raw", shape=len(y)))
    pm.Normal("y", theta, sigma, observed=y)
    return theta


def _first_school(y, sigma):
    theta = _schools(y, sigma)[0]
    return pt.sign(theta), pt.log(pt.abs(theta))


def _all_schools(y, sigma):
    return pt.switch(_schools(y, sigma).min() > 15.0, 1.0, 0.0), pt.constant(0.0)


def _four_branch():
    x = pm.Normal("x", 0.0, 1.0, shape=2)
    total, difference = (x[0] + x[1]) / np.sqrt(2), x[0] - x[1]
    curved = pt.abs(total) - 0.1 * difference**2 - 3.0
    margin = pt.maximum(curved, pt.abs(difference) - 7 / np.sqrt(2))
    return pt.switch(margin > 0, 1.0, 0.0), pt.constant(0.0)


def _log_sigmoid(x):
    return -pt.softplus(-x)


BUILDERS = {
    "posterior_predictive": _gaussian,
    "banana": _banana,
    "sir": _sir,
    "radon": _radon,
    "eight_schools": _first_school,
    "eight_schools_event": _all_schools,
    "four_branch": _four_branch,
}
