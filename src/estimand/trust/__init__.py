"""What a number stands on, and whether that is enough."""
