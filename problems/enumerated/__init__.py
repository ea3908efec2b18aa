"""Programs with discrete sites that are summed out: NumPyro's examples, and problems with truths."""
