"""Models we ship or load.

>>> model = ld3.zoo.load("fashion")
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ld3.zoo.pipelines import from_pipeline as from_pipeline
    from ld3.zoo.pipelines.model import rounding_cost as rounding_cost
    from ld3.zoo.shipped import SHIPPED as SHIPPED
    from ld3.zoo.shipped import checksum as checksum
    from ld3.zoo.shipped import has_features as has_features
    from ld3.zoo.shipped import judge as judge
    from ld3.zoo.shipped import judge_moments as judge_moments
    from ld3.zoo.shipped import load as load
    from ld3.zoo.shipped import perceptual as perceptual
    from ld3.zoo.shipped import real_clouds as real_clouds
    from ld3.zoo.shipped import weights_behind as weights_behind

_PIPELINES = {"from_pipeline": "pipelines", "rounding_cost": "pipelines.model"}

__all__ = [
    "SHIPPED", "checksum", "from_pipeline", "has_features", "judge", "judge_moments", "load",
    "perceptual", "real_clouds", "rounding_cost", "weights_behind",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'ld3.zoo' has no attribute {name!r}")
    return getattr(import_module(f"ld3.zoo.{_PIPELINES.get(name, 'shipped')}"), name)
