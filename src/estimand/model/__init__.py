"""How a model is stated: the protocol, and the NumPyro program that implements it."""
