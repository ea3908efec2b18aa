# %% [markdown]
# # Model comparison
#
# An insurer counts claims per month. Are they independent of each other (Poisson), do they vary more
# than that (negative binomial), or are there months without business (zero-inflated)? And how likely
# are more than twelve claims next month, when it is not known which of the three is right?

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpyro
import numpyro.distributions as dist

import estimand as ep

MANY = jnp.arange(13, 100)


@ep.expectation
def claims(counts, kind):
    mean = numpyro.sample("mean", dist.Gamma(2.0, 0.5))
    if kind == "poisson":
        monthly = dist.Poisson(mean)
    elif kind == "negative binomial":
        spread = numpyro.sample("spread", dist.Exponential(1.0))
        monthly = dist.NegativeBinomial2(mean, 1.0 / spread)
    else:
        idle = numpyro.sample("idle", dist.Uniform(0.0, 1.0))
        monthly = dist.ZeroInflatedPoisson(idle, rate=mean)
    with numpyro.plate("months", counts.size):
        numpyro.sample("counts", monthly, obs=counts)
    return jnp.exp(monthly.log_prob(MANY)).sum()  # P(more than twelve)


counts = jnp.array([3, 0, 5, 2, 7, 4, 1, 3, 0, 6, 2, 4, 9, 1, 3, 5, 2, 0, 4, 8, 3, 2, 6, 1])
kinds = ["poisson", "negative binomial", "zero-inflated"]
result = ep.compare({kind: claims(counts, kind) for kind in kinds}, average=True)
print(result)

# %% [markdown]
# Two years of data do not decide: the best model has a probability of three in four. The answer over
# models is the average of the three, weighted by how probable they are. They differ by a factor of 150,
# which a choice of one model would have hidden.

# %%
fig, (upper, lower) = plt.subplots(2, layout="constrained", figsize=(5.2, 4))
upper.barh(kinds, [result.models[kind].probability for kind in kinds])
upper.set(xlabel="probability of the model", xlim=(0, 1))
tails = [result.estimates[kind].value for kind in kinds]
lower.semilogx([*tails, result.average[0].value], [*kinds, "over models"], "o")
lower.set(xlabel="P(more than 12 claims)")
for ax in (upper, lower):
    ax.invert_yaxis()
