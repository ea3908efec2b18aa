# %% [markdown]
# # A decision, and what knowing more is worth
#
# How high should a dyke be? Each metre costs 0.04 million a year, and a flood above the dyke costs 1,000
# million. Fifteen years of highest levels say only roughly how often the highest floods come. Which
# height has the smallest expected cost, how sure is that, and what may a study of the river cost?

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import estimand as ep


def yearly_cost(height, location, scale):
    flooded = -jnp.expm1(-jnp.exp(-(height - location) / scale))
    return 0.04 * height + 1_000.0 * flooded


@ep.expectation
def dyke(height, levels):
    location = numpyro.sample("location", dist.Normal(2.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(-1.0, 0.3))
    with numpyro.plate("years", levels.size):
        numpyro.sample("level", dist.Gumbel(location, scale), obs=levels)
    return -yearly_cost(height, location, scale)


levels = jnp.array([1.6, 2.3, 1.9, 2.0, 2.8, 1.7, 2.1, 2.4, 1.8, 2.2, 3.1, 1.9, 2.0, 2.6, 1.5])
heights = np.array([6.0, 7.0, 8.0, 9.0, 10.0])
result = ep.decide(dyke, heights)(levels)
print(result)

# %% [markdown]
# A dyke of 6 m is the right one for most rivers that the data allow, and still the wrong choice: 7 m
# costs a little more for these, and far less for the others. The last line is the value of perfect
# information: a study of the river that costs more per year is not worth its money, whatever it finds.

# %%
fig, ax = plt.subplots(layout="constrained", figsize=(5.2, 4))
grid = np.linspace(5.5, 10.5, 60)
draws = result.utilities.samples("posterior", num_samples=40)
for location, scale in zip(draws["location"], draws["scale"]):
    ax.plot(grid, yearly_cost(grid, location, scale), color="tab:blue", alpha=0.2)
ax.plot(heights, [-action.utility.value for action in result.actions], "o-", color="black")
ax.axvline(result.best.setting, color="grey", linestyle=":")
ax.set(xlabel="height, m", ylabel="cost per year (blue: if the river were known)", ylim=(0.2, 1))
