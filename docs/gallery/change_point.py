# %% [markdown]
# # A change point
#
# Accidents were counted in 40 years; at some point the law changed. The year of the change is a
# discrete site, which is summed out: nothing needs to jump, and the probabilities are exact to many
# digits.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist

import estimand as ep


@ep.expectation
def accidents(counts):
    years = jnp.arange(counts.size)
    early = numpyro.sample("early", dist.Exponential(0.3))
    late = numpyro.sample("late", dist.Exponential(0.3))
    change = numpyro.sample(
        "change", dist.DiscreteUniform(0, counts.size - 1), infer={"enumerate": "parallel"}
    )
    rate = jnp.where(years < change, early, late)
    numpyro.sample("counts", dist.Poisson(rate).to_event(1), obs=counts)
    return {"before year 15": change < 15, "rate fell": late < early, "did not": late >= early}


counts = jnp.array(
    [4, 5, 4, 1, 0, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4]
    + [1, 0, 1, 1, 0, 2, 1, 0, 0, 1, 1, 2, 1, 0, 1, 0, 3, 0, 1, 1]
)
result = ep.estimate_expectation(accidents(counts))
print(result)

# %%
fig, ax = plt.subplots(layout="constrained", figsize=(5.2, 4))
ax.bar(range(40), counts, color="lightgrey", label="accidents")
draws = result.samples("posterior")["change"]
ax.hist(draws, [k - 0.5 for k in range(41)], density=True, alpha=0.7, label="P(change)")
ax.set(xlabel="year")
ax.legend(frameon=False)
