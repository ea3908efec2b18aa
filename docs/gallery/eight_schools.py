# %% [markdown]
# # Eight schools
#
# Rubin's eight schools measured what coaching does to test scores. How likely is it that school A's
# effect is above 40 points, which would be the first thing that a headline says? The model may be
# written as it is spoken: the neck of the funnel is the library's business.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist

import estimand as ep


@ep.expectation
def schools(effects, errors):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("effect", dist.Normal(theta, errors), obs=effects)
    return {"A above 40": theta[0] > 40, "A is best": jnp.argmax(theta) == 0}


effects = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
errors = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
result = ep.estimate_expectation(schools(effects, errors))
print(result)

# %%
fig, ax = plt.subplots(layout="constrained", figsize=(5.2, 4))
for part, label in (("posterior", "posterior"), ("gamma1_plus", "A above 40")):
    draws = result.samples(part)
    ax.semilogy(draws["theta"][:, 0], draws["tau"], ".", alpha=0.4, label=label)
ax.set(xlabel="effect of school A", ylabel="spread between schools")
ax.legend(frameon=False)
