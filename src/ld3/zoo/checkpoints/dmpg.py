"""Files of DMPG (Luo and Hu 2021): point clouds with a shape drawn from a prior."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import torch

from ld3.errors import ModelError
from ld3.options import PipelineOptions
from ld3.zoo.checkpoints.families import Description, Family
from ld3.zoo.checkpoints.layers import check_counts
from ld3.zoo.checkpoints.model import fitting, seen_in, with_weights
from ld3.zoo.checkpoints.reader import Checkpoint, Tensors
from ld3.zoo.points import PointConfig, PointModel, PointNetwork

LICENCE = "code of luost26/diffusion-point-cloud: MIT; trained on ShapeNet, which has its own terms"
POINTS = 2048  # of a cloud, where the file does not say
NET = "diffusion.net.layers"
UNUSED = ("encoder.", "diffusion.var_sched.")  # not needed to draw samples
BETAS = "diffusion.var_sched.betas"


def matches(found: Checkpoint) -> bool:
    named = found.config.get("family") == "dmpg" or f"{NET}.0._layer.weight" in found.tensors
    return named or (found.kind == "point-cloud" and "latent_dim" in found.config)


def config_of(found: Checkpoint) -> tuple[PointConfig, int]:
    """Sizes from the shapes, noise and number of points from the arguments in the file."""
    seen = seen_in(from_shapes, found.tensors)
    if found.config.get("family") == "dmpg":
        return from_json(found.config, seen)
    return from_arguments(found.config, seen)


def from_shapes(tensors: Tensors) -> PointConfig:
    """Sizes of a network with the noise of the published files."""

    def shape(name: str) -> tuple[int, ...]:
        if name not in tensors:
            raise ModelError(
                f"checkpoint: got a point-cloud file without {name}, expected a network with a "
                "flow prior; autoencoders (AE_*) and Gaussian priors have none: take GEN_*"
            )
        return tensors.shape(name)

    layers = _count(tensors, re.escape(NET) + r"\.(\d{1,2})\.")
    depth = _count(tensors, r"flow\.chain\.(\d{1,3})\.")
    if not depth:
        shape("flow.chain.0.net_s_t.0.weight")
    widths = tuple(shape(f"{NET}.{i}._layer.weight")[0] for i in range(layers - 1))
    return PointConfig(
        latent=shape(f"{NET}.0._hyper_bias.weight")[1] - 3,
        flow_depth=depth,
        flow_hidden=shape("flow.chain.0.net_s_t.0.weight")[0],
        widths=widths,
    )


def _count(tensors: Tensors, pattern: str) -> int:
    return 1 + max((int(m[1]) for name in tensors if (m := re.match(pattern, name))), default=-1)


def from_arguments(words: Mapping[str, Any], seen: PointConfig) -> tuple[PointConfig, int]:
    """What the training script was called with; defaults of the script for what is not there."""
    if words.get("sched_mode", "linear") != "linear":
        raise ModelError(
            f"checkpoint: got sched_mode {words['sched_mode']!r}, expected linear, the only one of "
            "the original"
        )
    if words.get("latent_dim", seen.latent) != seen.latent:
        raise ModelError(
            f"checkpoint: got latent_dim {words['latent_dim']!r}, but the network takes "
            f"{seen.latent}; the file is damaged"
        )
    config = replace(
        seen,
        residual=words.get("residual", True),
        steps=words.get("num_steps", 100),
        beta_first=words.get("beta_1", 1e-4),
        beta_last=words.get("beta_T", 0.02),
    )
    return checked(config, words.get("sample_num_points", POINTS))


def from_json(words: Mapping[str, Any], seen: PointConfig) -> tuple[PointConfig, int]:
    """The configuration of a converted file."""
    try:
        own = {f.name: words[f.name] for f in fields(PointConfig)}
        own["widths"] = tuple(own["widths"])
        config, points = checked(PointConfig(**own), words["points"])
    except (KeyError, TypeError) as error:
        raise ModelError(
            f"checkpoint: got a configuration that is not whole ({error}), expected what "
            "ld3 convert writes; convert the file again"
        ) from None
    sizes = ("latent", "flow_depth", "flow_hidden", "widths")
    wrong = [name for name in sizes if getattr(config, name) != getattr(seen, name)]
    if wrong:
        raise ModelError(
            f"checkpoint: got {wrong[0]} {getattr(config, wrong[0])} for tensors of "
            f"{getattr(seen, wrong[0])}, expected the same; convert the file again"
        )
    return config, points


def checked(config: PointConfig, points: object) -> tuple[PointConfig, int]:
    """Numbers that a model can be made of."""
    counts: dict[str, tuple[object, int, int]] = {
        "num_steps": (config.steps, 2, 100_000),
        "sample_num_points": (points, 1, 1_000_000),
        "latent_dim": (config.latent, 2, 100_000),
    }
    check_counts("checkpoint", counts)
    betas = (config.beta_first, config.beta_last)
    numbers = all(type(b) in (int, float) and math.isfinite(b) for b in betas)
    if not numbers or not 0 < betas[0] <= betas[1] < 1:
        raise ModelError(
            f"checkpoint: got betas {betas[0]!r} to {betas[1]!r}, expected rising between 0 and 1"
        )
    if type(config.residual) is not bool:
        raise ModelError(f"checkpoint: got residual {config.residual!r}, expected true or false")
    assert isinstance(points, int)
    return config, points


def sampling(tensors: Tensors) -> Tensors:
    """Without the encoder and the tables of the schedule."""
    return tensors.renamed({name: name for name in tensors if not name.startswith(UNUSED)})


def describe(found: Checkpoint, options: PipelineOptions) -> Description:
    config, points = config_of(found)
    network = fitting(lambda: PointNetwork(config), sampling(found.tensors))
    used = sum(weight.numel() for weight in network.parameters())
    idle = found.tensors.numel - used
    return Description(
        f"DMPG PointwiseNet ({'-'.join(map(str, (3, *config.widths, 3)))}) with a flow prior of "
        f"{config.flow_depth} couplings",
        used,
        (points, 3),
        f"{config.steps} steps, betas linear {config.beta_first:g} to {config.beta_last:g}",
        "eps",
        f"shape z, {config.latent} numbers from the prior, drawn from the seed",
        LICENCE,
        (
            "time of the network: beta, linear between the trained steps",
            f"{idle:,} numbers of the file (encoder, tables) are not needed to sample",
            "samples end at step 1, where the noise left is sqrt(beta_1)",
        ),
    )


def load(
    found: Checkpoint, device: torch.device, dtype: torch.dtype, options: PipelineOptions
) -> PointModel:
    config, points = config_of(found)
    if BETAS in found.tensors:
        _check_betas(config, found.tensors)
    network, digest = with_weights(
        lambda: PointNetwork(config), sampling(found.tensors), device, dtype
    )
    return PointModel(network, config, points, digest)


def _check_betas(config: PointConfig, tensors: Tensors) -> None:
    """The table in the file is 0 and then the betas of the arguments."""
    got = tensors[BETAS].double()
    even = torch.linspace(config.beta_first, config.beta_last, config.steps, dtype=torch.float64)
    wanted = torch.cat([torch.zeros(1, dtype=torch.float64), even])
    if got.shape != wanted.shape or not torch.allclose(got, wanted, rtol=1e-4, atol=1e-9):
        raise ModelError(
            f"checkpoint: got {BETAS} with other values than {config.steps} steps from "
            f"{config.beta_first:g} to {config.beta_last:g}, expected those of its arguments"
        )


def settings(found: Checkpoint, options: PipelineOptions) -> dict[str, Any]:
    config, points = config_of(found)
    words: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return {"family": "dmpg", "points": points, **words}


FAMILY = Family("DMPG", frozenset(), matches, describe, load, settings)
