"""A tail probability: how likely is a bad outcome that posterior draws never show?

Run it:     estimand run tail_probability.py:program --report report.html
Your data:  estimand run tail_probability.py:program --data losses.json
            where losses.json is, for example, {"losses": [0.3, -0.1, 0.8], "limit": 4.0}
"""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import estimand as ep

LOSSES = jnp.array([0.3, -0.4, 0.1, 0.9, -0.2, 0.5, 0.0, 0.7, -0.6, 0.2])


@ep.expectation
def program(losses=LOSSES, limit=4.0):
    # The model: the unknowns, and how they generate the data. This is ordinary NumPyro.
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("days", losses.shape[0]):
        numpyro.sample("losses", dist.Normal(mean, scale), obs=losses)

    # The quantity of interest is the return value; its expectation is estimated. This is
    # P(tomorrow's loss > limit) given the unknowns: a smooth probability is easier to estimate
    # than a comparison. Return a dict to ask several questions at once.
    return dist.Normal(0.0, 1.0).cdf((mean - limit) / scale)
