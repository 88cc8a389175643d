"""Models we ship or load."""
