"""A model for ld3. It runs as it is; replace the three places marked 1, 2 and 3.

ld3 learn --model MODULE:make --nfe 5
"""

import torch
from torch import Tensor

import ld3


def make(device: str = "cpu", dtype: torch.dtype = torch.float32) -> ld3.FunctionModel:
    """ld3 calls this once. Both arguments may be left out: then --device and --dtype are not
    passed on."""
    # 1. Your network, frozen. Here: the exact denoiser of two blobs, so that nothing is loaded.
    centres = torch.tensor([[-1.0, 0.0], [1.0, 0.5]], device=device, dtype=dtype)  # (2, 2)

    def network(x: Tensor, sigma: Tensor) -> Tensor:
        away = x[:, None] - centres  # (B, 2, 2)
        near = (-away.square().sum(2) / (2 * (0.04 + sigma**2))).softmax(1)  # (B, 2)
        clean = centres + 0.04 / (0.04 + sigma**2) * away  # (B, 2, 2): if x is of this blob
        return (near[..., None] * clean).sum(1)  # (B, 2): the estimate of the clean sample

    # 2. Its noise schedule (`ld3 schedules`); the last line says what its output means (x0, eps, v
    # or flow), the shape of one sample, and the dtype of the network.
    schedule = ld3.EDM(t_min=0.002, t_max=80.0)

    # 3. How it is called: x (B, *shape), one time t, and the condition or None.
    def function(x: Tensor, t: Tensor, cond: ld3.models.Cond) -> Tensor:
        return network(x, t)

    return ld3.FunctionModel(function, schedule, prediction="x0", shape=(2,), dtype=dtype)
