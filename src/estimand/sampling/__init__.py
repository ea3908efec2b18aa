"""Machinery that estimators and methods share."""
