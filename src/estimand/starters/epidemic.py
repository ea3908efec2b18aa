"""An epidemic: its expected peak, and the probability that it overwhelms the hospitals.

A discrete-time SIR model of 10,000 people, fitted to the new cases of the first days.

Run it:     estimand run epidemic.py:program --relative-error 0.02 --report epidemic.html
Your data:  estimand run epidemic.py:program --data cases.json
            where cases.json is, for example, {"cases": [5, 8, 13, 19, 28, 44, 60, 91]}
"""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import estimand as ep

CASES = jnp.array([4, 6, 7, 9, 14, 17, 22, 31, 38, 52])
POPULATION = 10_000.0
CAPACITY = 2_500.0
DAYS = 120


@ep.expectation
def program(cases=CASES):
    # Infections per infected person per day, and the share of the infected who recover each day.
    contact_rate = numpyro.sample("contact_rate", dist.LogNormal(jnp.log(0.4), 0.5))
    recovery_rate = numpyro.sample("recovery_rate", dist.Beta(4.0, 16.0))
    first = numpyro.sample("first", dist.LogNormal(jnp.log(10.0), 0.5))

    def day(state, _):
        susceptible, infected = state
        new = susceptible * (1.0 - jnp.exp(-contact_rate * infected / POPULATION))
        state = (susceptible - new, infected + new - recovery_rate * infected)
        return state, (new, state[1])

    start = (POPULATION - first, first)
    _, (new, infected) = jax.lax.scan(day, start, None, length=DAYS)

    with numpyro.plate("days", cases.shape[0]):
        rate = new[: cases.shape[0]] + 1e-3
        numpyro.sample("cases", dist.NegativeBinomial2(rate, 20.0), obs=cases)

    # Two questions about the future course of the epidemic.
    peak = jnp.max(infected)
    return {"peak": peak, "over capacity": peak > CAPACITY}
