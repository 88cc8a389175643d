"""Methods against each other on one model."""
