"""A regression: three questions about a fitted line.

Run it:     estimand run regression.py:program --output regression.est
Your data:  estimand run regression.py:program --data table.csv
            where the columns have the names of the program's arguments: dose,response
Compare:    estimand compare-methods regression.py:program
"""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import estimand as ep

DOSE = jnp.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5])
RESPONSE = jnp.array([1.1, 0.8, 1.9, 2.1, 2.4, 3.4, 3.1, 4.2])


@ep.expectation
def program(dose=DOSE, response=RESPONSE):
    # Priors: what is plausible before seeing the data.
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("rows", dose.shape[0]):
        numpyro.sample("response", dist.Normal(intercept + slope * dose, noise), obs=response)

    # Three questions, estimated together.
    at_five = intercept + slope * 5.0
    return {
        "slope": slope,
        "response at dose 5": at_five,
        "probability that it is above 7": at_five > 7.0,
    }
