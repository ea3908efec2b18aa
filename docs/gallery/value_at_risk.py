# %% [markdown]
# # Value at risk and shortfall
#
# A fund has 36 monthly returns. Which loss is exceeded in one month of a thousand (the *value at risk*),
# and how much is lost on average in such a month (the *expected shortfall*)? The mean and the spread are
# not known exactly, and far out this matters more than anything else: a spread that is a little larger
# makes a large loss many times as likely.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import estimand as ep


@ep.expectation
def loss(returns):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    sd = numpyro.sample("sd", dist.HalfNormal(5.0))
    with numpyro.plate("months", returns.size):
        numpyro.sample("return", dist.Normal(mean, sd), obs=returns)
    return -numpyro.sample("next month", dist.Normal(mean, sd))  # in per cent of the fund


returns = jnp.array(
    [1.9, -0.4, 2.7, 0.8, -3.1, 1.2, 4.0, -1.7, 0.3, 2.2, -2.4, 1.1]
    + [-0.9, 3.3, 0.6, -4.6, 2.0, 1.5, -1.2, 0.1, 5.1, -2.0, 1.8, 0.7]
    + [-0.2, 2.9, -3.8, 1.4, 0.9, -1.5, 3.6, -0.6, 2.4, -2.9, 0.4, 1.0]
)
result = ep.quantile(loss(returns), [0.9, 0.99, 0.999, 1 - 1e-4, 1 - 1e-6])
print(result)

# %%
shortfall = ep.shortfall(loss(returns), 1e-3)
print(shortfall)

# %% [markdown]
# Below, the dotted line has the best values of mean and spread plugged in, as a spreadsheet does. Its
# losses are too small, the more so the rarer they are: what it takes for the loss of one month in a
# million is exceeded thirty times as often.

# %%
fig, ax = plt.subplots(layout="constrained", figsize=(5.2, 4))
tails = [tail.tail_probability for tail in result.tails]
low, high = result.interval()
ax.errorbar(
    result.value,
    tails,
    xerr=[result.value - low, high - result.value],
    fmt="o",
    label="as estimated",
)
grid = np.linspace(0, 16, 200)
plugged_in = jax.scipy.stats.norm.sf(grid, -returns.mean(), returns.std())
ax.semilogy(grid, plugged_in, color="grey", linestyle=":", label="best values plugged in")
ax.axvline(shortfall.value, color="tab:orange", label="shortfall, worst of 1,000")
ax.set(xlabel="loss in a month, %", ylabel="probability of more", ylim=(1e-7, 1))
ax.legend(frameon=False)
