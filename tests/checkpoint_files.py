"""Small checkpoints of every kind: weights from names, files as their authors' code writes them.

Weights follow the rule of ../shared/fixtures: a number depends on the name of its tensor and its
place, so that anybody can make them again.
"""

import argparse
import io
import pickle
import sys
import types
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ld3.zoo.checkpoints.edm import EDMConfig, Preconditioned
from ld3.zoo.checkpoints.openai_unet import OpenAIUNet, UNetConfig
from ld3.zoo.points import PointConfig, PointNetwork

SOURCE = "raise RuntimeError('code inside a checkpoint was run')\n"

SONG: dict[str, Any] = {
    "img_resolution": 8, "img_channels": 3, "label_dim": 0, "model_type": "SongUNet",
    "embedding_type": "positional", "encoder_type": "standard", "decoder_type": "standard",
    "channel_mult_noise": 1, "resample_filter": [1, 1], "model_channels": 8,
    "channel_mult": [1, 2], "num_blocks": 1, "attn_resolutions": [4], "dropout": 0.13,
    "augment_dim": 9,
}  # fmt: skip
NCSN = {
    **SONG, "embedding_type": "fourier", "encoder_type": "residual", "channel_mult_noise": 2,
    "resample_filter": [1, 3, 3, 1],
}  # fmt: skip
ADM = {
    "img_resolution": 8, "img_channels": 3, "label_dim": 5, "model_type": "DhariwalUNet",
    "model_channels": 64, "channel_mult": [1, 1], "num_blocks": 1, "attn_resolutions": [4],
    "dropout": 0.1,
}  # fmt: skip
UNET = UNetConfig(32, (1, 2), 1, (2,), num_heads=4, scale_shift=True)
FLAGS = {
    "image_size": 8, "num_heads": 4, "diffusion_steps": 4000, "noise_schedule": "cosine",
    "rescale_timesteps": True, "dropout": 0.1,
}  # fmt: skip


def numbers(name: str, count: int) -> np.ndarray:
    """u in [-1, 1) by splitmix64 of the name's CRC-32 and the place."""
    with np.errstate(over="ignore"):
        z = np.uint64(zlib.crc32(name.encode())) * np.uint64(2**32) + np.arange(
            count, dtype=np.uint64
        )
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1


def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    u = torch.from_numpy(numbers(name, int(np.prod(shape)))).reshape(shape)
    if len(shape) >= 2:
        u = u * np.sqrt(3 / np.prod(shape[1:]))
    elif name.endswith("weight"):
        u = 1 + 0.1 * u
    else:
        u = 0.1 * u
    return u.float()


def state_of(network: nn.Module, buffers: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Weights by the rule; buffers as given, else as built; frequencies are 16 u."""
    own = dict(network.named_buffers())
    state = OrderedDict()
    for name, value in network.state_dict().items():
        if name.endswith("freqs"):
            state[name] = torch.from_numpy(16 * numbers(name, len(value))).float()
        elif name in own:
            state[name] = (buffers or {}).get(name, value)
        else:
            state[name] = weight(name, tuple(value.shape))
    return state


def image(name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.sqrt(3) * numbers(name, int(np.prod(shape)))).reshape(shape)


# Files


class Persistent:
    """Written as EDM's code does it: a call with a dictionary that holds source text."""

    def __init__(self, name: str, state: dict[str, Any]) -> None:
        self.name, self.state = name, state

    def __reduce__(self) -> tuple[Any, ...]:
        meta = {
            "type": "class", "version": 6, "module_src": SOURCE, "class_name": self.name,
            "state": self.state,
        }  # fmt: skip
        return sys.modules["torch_utils.persistence"]._reconstruct_persistent_obj, (meta,)


def edm_pickle(words: dict[str, Any], precond: str = "EDMPrecond") -> bytes:
    """A snapshot as EDM's training writes it, of a small network with weights by the rule."""
    network = Preconditioned(EDMConfig.read({**words, "precond": precond}))
    network.load_state_dict(state_of(network))
    outer = _persistent(network, precond)
    outer.state |= {
        "img_resolution": words["img_resolution"], "sigma_min": 0, "sigma_max": float("inf"),
        "sigma_data": np.float64(0.5), "_init_kwargs": words,
    }  # fmt: skip
    fake = types.ModuleType("torch_utils.persistence")

    def _reconstruct_persistent_obj(meta: dict[str, Any]) -> None:
        raise AssertionError("run")

    _reconstruct_persistent_obj.__module__ = "torch_utils.persistence"
    _reconstruct_persistent_obj.__qualname__ = "_reconstruct_persistent_obj"
    fake._reconstruct_persistent_obj = _reconstruct_persistent_obj  # type: ignore[attr-defined]
    sys.modules |= {"torch_utils": types.ModuleType("torch_utils"), fake.__name__: fake}
    try:
        return pickle.dumps({"ema": outer, "loss_fn": None, "dataset_kwargs": {}}, protocol=4)
    finally:
        del sys.modules[fake.__name__], sys.modules["torch_utils"]


def _persistent(module: nn.Module, name: str = "") -> Persistent:
    return Persistent(
        name or type(module).__name__,
        {
            "training": False,
            "_parameters": OrderedDict(module._parameters),
            "_buffers": OrderedDict(module._buffers),
            "_non_persistent_buffers_set": set(),
            "_modules": OrderedDict(
                (key, None if inner is None else _persistent(inner))
                for key, inner in module._modules.items()
            ),
        },
    )


def openai_state() -> dict[str, Tensor]:
    return state_of(OpenAIUNet(UNET))


def saved(value: object, *, zipped: bool = True) -> bytes:
    target = io.BytesIO()
    torch.save(value, target, _use_new_zipfile_serialization=zipped)
    return target.getvalue()


class Callback:
    """Stands for a class of Lightning that is a key of a dictionary."""


def lightning(state: dict[str, Tensor]) -> bytes:
    return saved(
        {
            "epoch": 3,
            "global_step": 7,
            "callbacks": {Callback: {"best": np.float64(0.25)}},
            "state_dict": state,
            "optimizer_states": [{"state": {0: {"step": torch.ones(())}}}],
        }
    )


POINTS = PointConfig(latent=16, flow_depth=4, flow_hidden=24)
POINT_ARGS: dict[str, Any] = {
    "model": "flow", "latent_dim": 16, "num_steps": 100, "beta_1": 1e-4, "beta_T": 0.02,
    "sched_mode": "linear", "flexibility": 0.0, "truncate_std": 2.0, "latent_flow_depth": 4,
    "latent_flow_hidden_dim": 24, "sample_num_points": 32, "residual": True, "spectral_norm": False,
    "categories": ["airplane"], "scale_mode": "shape_unit", "max_iters": float("inf"), "tag": None,
}  # fmt: skip


def point_state(config: PointConfig = POINTS) -> dict[str, Tensor]:
    """A state dict of DMPG: encoder and tables of the schedule beside what sampling needs. The last
    layer is smaller, as in ../shared/fixtures."""
    state = {"encoder.conv1.weight": weight("encoder.conv1.weight", (8, 3, 1))}
    state["encoder.bn1.num_batches_tracked"] = torch.tensor(7)
    state |= state_of(PointNetwork(config))
    for name in state:
        if name.startswith("diffusion.net.layers.5."):
            state[name] = 0.3 * state[name]
    betas = torch.linspace(config.beta_first, config.beta_last, config.steps)
    state["diffusion.var_sched.betas"] = torch.cat([torch.zeros(1), betas])
    return state


def point_cloud(state: dict[str, Tensor] | None = None, **changes: Any) -> bytes:
    """A file as DMPG's training script writes it, of a small network."""
    args = argparse.Namespace(**{**POINT_ARGS, **changes})
    return saved({"args": args, "state_dict": state or point_state(), "others": {"optimizer": {}}})


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
