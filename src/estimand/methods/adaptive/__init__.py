"""Importance sampling from a mixture fitted to every part at once."""
