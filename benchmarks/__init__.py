"""Measurements: `python -m benchmarks.run NAME` from the root of the repository."""
