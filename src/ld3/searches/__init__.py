"""Searches: ways to choose the times that look at the model, its pairs or the solver."""
