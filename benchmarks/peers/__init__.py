"""What a user would pick instead: other libraries on the same problems, at the same cost.

`python -m benchmarks.run peers` runs every problem with every peer and prints one table. A peer is
a module of this package; nothing in it but `default.py` imports estimand. The densities come from
the plain NumPyro models, and the PyMC models are written by hand.
"""
