"""The paper's experiments: `python -m experiments.run_all` from the root of the repository."""
