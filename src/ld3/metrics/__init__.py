"""Ways to judge samples."""

from ld3.metrics.frechet import Moments, frechet_distance

__all__ = ["Moments", "frechet_distance"]
