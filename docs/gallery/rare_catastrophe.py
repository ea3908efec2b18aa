# %% [markdown]
# # The expected cost of a rare catastrophe
#
# Small floods happen every few years and cost little. A dyke of 6 m breaks about once in fifteen
# thousand years, and then everything behind it is lost. The expected yearly cost is the sum of both,
# and the catastrophe is in a handful of ten thousand draws, or in none of them.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist

import estimand as ep


@ep.expectation
def floods(levels):
    location = numpyro.sample("location", dist.Normal(2.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(-1.0, 0.3))
    with numpyro.plate("years", levels.size):
        numpyro.sample("level", dist.Gumbel(location, scale), obs=levels)
    highest = numpyro.sample("highest", dist.Gumbel(location, scale))
    small = 0.1 * jnp.maximum(highest - 2.5, 0.0)
    return {"small floods": small, "catastrophe": 1e4 * (highest > 6.0)}


levels = jnp.array([1.6, 2.3, 1.9, 2.0, 2.8, 1.7, 2.1, 2.4, 1.8, 2.2, 3.1, 1.9, 2.0, 2.6, 1.5])
result = ep.estimate_expectation(floods(levels))
print(result)

# %% [markdown]
# The same by averaging draws of NUTS:

# %%
chains = ep.estimate_expectation(floods(levels), ep.PosteriorMCMC(), throw=False)
print(chains)

# %% [markdown]
# The catastrophe costs far more than all small floods together. The average of 4,000 draws of NUTS
# rests on the few draws that happen to be catastrophes, and is refused.

# %%
fig, ax = plt.subplots(layout="constrained", figsize=(5.2, 4))
for part, label in (("posterior", "posterior"), ("gamma1_plus", "catastrophes")):
    ax.hist(result.samples(part, output=1)["highest"], 60, density=True, alpha=0.5, label=label)
ax.set(xlabel="highest level of next year, m", xlim=(1, 9))
ax.legend(frameon=False)
