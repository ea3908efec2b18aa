# %% [markdown]
# # A failure probability with data
#
# A beam fails if its load exceeds its strength. The mean strength is not known exactly: eight test
# pieces were broken. Codes ask for the probability of failure *with* that uncertainty. It is some
# 10⁻⁸ here, and no number of posterior draws that one can afford has a failure in it.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist

import estimand as ep


@ep.expectation
def beam(tests):
    mean = numpyro.sample("mean", dist.Normal(50.0, 10.0))
    with numpyro.plate("tests", tests.size):
        numpyro.sample("test", dist.Normal(mean, 4.0), obs=tests)
    strength = numpyro.sample("strength", dist.Normal(mean, 4.0))
    load = numpyro.sample("load", dist.Normal(20.0, 3.0))
    return load > strength


tests = jnp.array([48.2, 51.0, 44.9, 47.3, 53.1, 46.2, 49.5, 50.8])
result = ep.estimate_expectation(beam(tests))
print(result)

# %%
fig, ax = plt.subplots(layout="constrained", figsize=(5.2, 4))
for part, label in (("posterior", "posterior"), ("gamma1_plus", "failures")):
    draws = result.samples(part)
    ax.plot(draws["load"], draws["strength"], ".", alpha=0.4, label=label)
ax.axline((30, 30), slope=1, color="grey", linestyle=":")
ax.set(xlabel="load", ylabel="strength")
ax.legend(frameon=False)

# %% [markdown]
# Failures happen where the strength is unusually low *and* the load unusually high: the most likely
# way to fail, which engineers call the design point, is where the orange draws are densest.
