"""Models we ship or load.

>>> model = ld3.zoo.load("fashion")
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ld3.zoo.shipped import SHIPPED as SHIPPED
    from ld3.zoo.shipped import checksum as checksum
    from ld3.zoo.shipped import judge as judge
    from ld3.zoo.shipped import judge_moments as judge_moments
    from ld3.zoo.shipped import load as load
    from ld3.zoo.shipped import perceptual as perceptual

__all__ = ["SHIPPED", "checksum", "judge", "judge_moments", "load", "perceptual"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'ld3.zoo' has no attribute {name!r}")
    return getattr(import_module("ld3.zoo.shipped"), name)
