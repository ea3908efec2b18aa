# %% [markdown]
# # An A/B test
#
# Page A had 120 sales from 2,400 visitors, page B 165 from 2,380. Two questions decide: how likely is
# it that B sells at least 20 % more, and how many sales per thousand visitors are lost on average if
# B is chosen and A is in fact better? The second is the *expected loss*, small exactly when it is
# safe to decide, and then hard to average: few draws have any loss.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist

import estimand as ep


@ep.expectation
def choose_b(sales, visitors):
    rate = numpyro.sample("rate", dist.Beta(1.0, 19.0).expand([2]).to_event(1))
    numpyro.sample("sales", dist.Binomial(visitors, rate).to_event(1), obs=sales)
    a, b = rate
    return {"uplift above 20 %": b > 1.2 * a, "loss": 1000 * jnp.maximum(a - b, 0.0)}


sales, visitors = jnp.array([120, 165]), jnp.array([2400, 2380])
result = ep.estimate_expectation(choose_b(sales, visitors))
print(result)

# %% [markdown]
# The expected loss is about 0.005 sales in a thousand visitors: choose B. It comes from where A's rate
# is above B's, where hardly any draw of the posterior lies.

# %%
fig, ax = plt.subplots(layout="constrained", figsize=(5.2, 4))
for part, label in (("posterior", "posterior"), ("gamma1_plus", "where the loss comes from")):
    rate = result.samples(part, output=1)["rate"]
    ax.plot(*rate.T, ".", alpha=0.4, label=label)
ax.axline((0.06, 0.06), slope=1, color="grey", linestyle=":")
ax.set(xlabel="rate of A", ylabel="rate of B")
ax.legend(frameon=False)
