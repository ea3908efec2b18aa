# %% [markdown]
# # The tail of an epidemic
#
# Infections in the first ten days of an outbreak are counted. What is the chance that more beds are
# needed at the peak than there are? The peak is a function of two rates that the first days determine
# only roughly, and the worst cases are far out in the posterior.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import estimand as ep

PEOPLE, BEDS, DAYS = 10_000.0, 3_500.0, 120


def infected(beta, gamma):
    def day(state, _):
        s, i = state
        new = beta * s * i / PEOPLE
        return (s - new, i + new - gamma * i), i

    return jax.lax.scan(day, (PEOPLE - 10.0, 10.0), None, length=DAYS)[1]


@ep.expectation
def outbreak(counts):
    beta = numpyro.sample("beta", dist.LogNormal(-1.0, 0.3))
    gamma = numpyro.sample("gamma", dist.LogNormal(-2.0, 0.2))
    curve = infected(beta, gamma)
    numpyro.sample("counts", dist.Poisson(curve[: counts.size]).to_event(1), obs=counts)
    return {"peak": curve.max(), "too many": ep.event(curve.max() - BEDS)}


counts = jnp.array([9, 13, 14, 17, 22, 24, 33, 39, 46, 60])
result = ep.estimate_expectation(outbreak(counts))
print(result)

# %%
fig, ax = plt.subplots(layout="constrained", figsize=(5.2, 4))
for part, colour in (("posterior", "tab:blue"), ("gamma1_plus", "tab:orange")):
    draws = result.samples(part, output=1, num_samples=40)
    for beta, gamma in zip(draws["beta"], draws["gamma"]):
        ax.plot(np.asarray(infected(beta, gamma)), color=colour, alpha=0.3)
ax.axhline(BEDS, color="black", linestyle=":")
ax.set(xlabel="day", ylabel="infected (blue: posterior, orange: too many)")
