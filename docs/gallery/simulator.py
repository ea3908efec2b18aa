# %% [markdown]
# # A simulator
#
# A design is checked by a program that JAX cannot look into: here NumPy, elsewhere a finite-element
# code that takes minutes. A thousand calls must do for a probability of a few in a thousand, and most
# of them must not be wasted on designs that are safe.

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import estimand as ep


def margin(points):
    x = points["x"]
    return 2.5 - x.sum(axis=1) / np.sqrt(2) + 0.1 * (x[:, 0] - x[:, 1]) ** 2


failure = ep.from_simulator(
    margin, prior={"x": dist.Normal(0, 1).expand([2]).to_event(1)}, f=lambda sites, g: g < 0
)
result = ep.estimate_expectation(failure())
print(result)

# %% [markdown]
# This margin is simple enough for quadrature, which says 0.0042073: just outside of the interval. A 95 %
# interval misses once in twenty, by a little, and the key 0 is such a case: of the keys 0 to 99, 95 have
# the truth in their intervals, which is what they promise.

# %%
fig, ax = plt.subplots(layout="constrained", figsize=(5.2, 4))
grid = np.linspace(-4, 5, 200)
both = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
ax.contour(grid, grid, margin({"x": both}).reshape(200, 200), [0.0], colors="black")
ax.plot(*np.random.default_rng(0).normal(size=(2, 500)), ".", alpha=0.4, label="prior")
failures = result.samples("gamma1_plus")["x"]
ax.plot(*failures.T, ".", alpha=0.4, label="failures")
ax.set(xlabel="x[0]", ylabel="x[1]")
ax.legend(frameon=False)
