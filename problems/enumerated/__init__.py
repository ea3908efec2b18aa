"""Programs whose discrete sites are summed out: NumPyro's examples, and problems with truths."""
