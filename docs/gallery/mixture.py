# %% [markdown]
# # A mixture with labels
#
# Each measurement belongs to one of two groups. How likely is it that the third one, which lies
# between them, belongs to the upper group, and that all of the first four do? Labels are drawn as in
# any NumPyro model and summed out by themselves.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist

import estimand as ep


@ep.expectation
def groups(y):
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    low = numpyro.sample("low", dist.Normal(0.0, 2.0))
    gap = numpyro.sample("gap", dist.LogNormal(1.0, 0.5))
    with numpyro.plate("rows", y.size):
        label = numpyro.sample("label", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(low + gap * label, 0.7), obs=y)
    return {"third is upper": label[2], "first four are": jnp.all(label[:4] == 1)}


y = jnp.array([3.1, 2.4, 1.4, 2.9, -0.2, 0.4, 0.1, 0.9, 2.7, -0.5, 3.4, 0.3])
result = ep.estimate_expectation(groups(y))
print(result)

# %%
fig, ax = plt.subplots(layout="constrained", figsize=(5.2, 4))
draws = result.samples("posterior")
ax.hist(draws["low"], 40, density=True, alpha=0.5, label="lower mean")
ax.hist(draws["low"] + draws["gap"], 40, density=True, alpha=0.5, label="upper mean")
ax.plot(y, 0 * y, "k|", markersize=14, label="data")
ax.legend(frameon=False)
