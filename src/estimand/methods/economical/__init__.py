"""Few evaluations of an expensive simulator, guided by a surrogate that is never believed.

- `target`: what is known without the simulator: prior, likelihood and f of its outputs.
- `surrogate`: a Gaussian process in place of the simulator.
- `pool`: a proposal fitted to the surrogate, many points of it, and which of them to ask for.
- `rounds`: evaluations in rounds, each chosen by the surrogate of all before it.
- `estimates`, `judge`: what the rounds say, and what speaks against it.
- `method`: the loop.
"""

from estimand.methods.economical.method import Economical

__all__ = ["Economical"]
