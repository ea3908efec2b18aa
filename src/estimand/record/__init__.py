"""What is kept of an estimation: storage, merging, provenance."""
