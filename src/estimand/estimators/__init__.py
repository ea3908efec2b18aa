"""Estimators of the normalising constant of one density."""
