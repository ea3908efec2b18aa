"""A tail probability: how likely is a bad outcome that no posterior draw ever shows?

Run it:     estimand run tail_probability.py:program --report report.html
Your data:  estimand run tail_probability.py:program --data losses.json
            with losses.json such as {"losses": [0.3, -0.1, 0.8], "limit": 4.0}
"""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import estimand as ep

LOSSES = jnp.array([0.3, -0.4, 0.1, 0.9, -0.2, 0.5, 0.0, 0.7, -0.6, 0.2])


@ep.expectation
def program(losses=LOSSES, limit=4.0):
    # The model: what is unknown, and how it made the data. This is ordinary NumPyro.
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("days", losses.shape[0]):
        numpyro.sample("losses", dist.Normal(mean, scale), obs=losses)

    # What you want to know, as the return value: its expectation is what is estimated. A smooth
    # probability is better than a comparison: this is P(tomorrow's loss > limit) given the
    # unknowns. Return a dict to ask several questions at once.
    return dist.Normal(0.0, 1.0).cdf((mean - limit) / scale)
