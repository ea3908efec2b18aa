"""What a return expression says about itself: sign, log-magnitude, softened comparisons."""
