"""Plots of a record."""
