"""Methods: how an expectation is estimated."""
