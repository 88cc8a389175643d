"""Files of EDM: which network, from the configuration inside or from the shapes."""

import re
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import Tensor

from ld3.errors import ModelError
from ld3.options import PipelineOptions
from ld3.schedules import EDM
from ld3.zoo.checkpoints.edm import PRECONDS, EDMConfig, Preconditioned, square_filter
from ld3.zoo.checkpoints.families import Description, Family
from ld3.zoo.checkpoints.model import (
    CheckpointModel,
    chosen_classes,
    fitting,
    seen_in,
    with_weights,
)
from ld3.zoo.checkpoints.tensors import Checkpoint, Tensors

LICENCE = "weights and code of NVlabs/edm: CC BY-NC-SA 4.0, not for commercial use"
ROUNDED = (
    "the original rounds its time to a table; here it is linear in log sigma between the entries, "
    "so that gradients pass; --net-time integer rounds it"
)
ENDS = {
    "EDMPrecond": (0.002, 80.0),
    "VPPrecond": (1e-3, 152.16697692871094),
    "VEPrecond": (0.02, 100.0),
}


def matches(found: Checkpoint) -> bool:
    return (
        found.kind == "edm"
        or found.config.get("family") == "edm"
        or any(re.match(r"model\.enc\.\d+x\d+_conv\.weight$", name) for name in found.tensors)
    )


def config_of(found: Checkpoint, options: PipelineOptions) -> EDMConfig:
    """From the configuration in the file, else from the shapes."""
    inner = found.config.get("model")  # the network's own arguments, where the file has them
    words = {**(inner if isinstance(inner, dict) else {}), **found.config}
    if found.kind != "edm" and words.get("family") != "edm":
        words = seen_in(from_shapes, found.tensors)
        if "precond" not in words:
            words["precond"] = options.config
            if options.config is None:
                raise ModelError(
                    f"{found.path}: got a network of EDM without its preconditioner, expected one "
                    f"in the file; say --config {', '.join(PRECONDS[:3])}: edm-* files are "
                    "EDMPrecond"
                )
    elif options.config is not None and options.config != words.get("precond"):
        raise ModelError(
            f"--config: got {options.config}, but the file says {words.get('precond')}; leave it "
            "out"
        )
    return EDMConfig.read(words)


def from_shapes(tensors: Tensors) -> dict[str, Any]:
    """The configuration that names and shapes of a state dict tell."""
    sizes: list[int] = []
    for name in tensors:
        level = re.match(r"model\.enc\.(\d+)x\1_", name)
        if level and int(level[1]) not in sizes:
            sizes.append(int(level[1]))
    sizes.sort(reverse=True)

    def shape(name: str) -> tuple[int, ...]:
        try:
            return tensors.shape(f"model.{name}")
        except KeyError:
            raise ModelError(
                f"checkpoint: got a network of EDM without {name}, expected all of its tensors"
            ) from None

    top = f"{sizes[0]}x{sizes[0]}"
    adm = "model.out_conv.weight" in tensors
    width = shape("map_layer0.weight")[1]
    base = width if adm else shape(f"enc.{top}_conv.weight")[0]
    blocks = 0
    while f"model.enc.{top}_block{blocks}.conv0.weight" in tensors:
        blocks += 1
    found: dict[str, Any] = {
        "img_resolution": sizes[0],
        "img_channels": shape(f"enc.{top}_conv.weight")[1],
        "label_dim": shape("map_label.weight")[1] if "model.map_label.weight" in tensors else 0,
        "model_type": "DhariwalUNet" if adm else "SongUNet",
        "model_channels": base,
        "channel_mult": [shape(f"enc.{r}x{r}_block0.conv0.weight")[0] // base for r in sizes],
        "channel_mult_emb": shape("map_layer0.weight")[0] // base,
        "num_blocks": blocks,
        "attn_resolutions": [r for r in sizes if f"model.enc.{r}x{r}_block0.qkv.weight" in tensors],
        "augment_dim": (
            shape("map_augment.weight")[1] if "model.map_augment.weight" in tensors else 0
        ),
        "embedding_type": "fourier" if "model.map_noise.freqs" in tensors else "positional",
        "channel_mult_noise": 1 if adm else width // base,
    }
    if len(sizes) > 1:
        deeper = f"enc.{sizes[1]}x{sizes[1]}"
        if f"model.{deeper}_aux_residual.weight" in tensors:
            found["encoder_type"] = "residual"
        taps = shape(f"{deeper}_down.conv0.resample_filter")[-1]
        found["resample_filter"] = [1, 3, 3, 1] if taps == 4 else [1, 1]
    if "u" in tensors:
        found["precond"] = "iDDPMPrecond"
    return found


def schedule_of(config: EDMConfig, found: Checkpoint) -> EDM:
    """The range of sigma that sampling uses, as the repository does."""
    if config.precond == "iDDPMPrecond":
        u = found.tensors["u"]
        return EDM(float(u[-2]), min(float(u[0]), 80.0))
    return EDM(*ENDS[config.precond])


def describe(found: Checkpoint, options: PipelineOptions) -> Description:
    config = config_of(found, options)
    network = fitting(lambda: Preconditioned(config), found.tensors)
    schedule = schedule_of(config, found)
    notes = [ROUNDED] if config.precond == "iDDPMPrecond" else []
    if found.config.get("use_fp16") is True:
        notes.append("the original runs this network in float16 on a GPU: --dtype float16")
    style = "ADM" if config.adm else "NCSN++" if config.embedding_type == "fourier" else "DDPM++"
    return Description(
        f"EDM {style} ({config.model_type}, {config.precond})",
        sum(weight.numel() for weight in network.parameters()),
        config.shape,
        f"EDM: sigma = t, {schedule.t_min:g} to {schedule.t_max:g}",
        "x0",
        f"classes 0-{config.label_dim - 1}" if config.label_dim else "none",
        LICENCE,
        tuple(notes),
    )


def load(
    found: Checkpoint, device: torch.device, dtype: torch.dtype, options: PipelineOptions
) -> CheckpointModel:
    config = config_of(found, options)
    network, digest = with_weights(lambda: Preconditioned(config), found.tensors, device, dtype)
    for name, buffer in network.named_buffers():
        if name.endswith("resample_filter") and not torch.allclose(
            buffer.float().cpu(), square_filter(config.resample_filter)
        ):
            raise ModelError(
                f"checkpoint: got {name} with other values than {list(config.resample_filter)}, "
                "expected the filter of the configuration"
            )
    rounded = options.net_time == "integer"
    if rounded and config.precond != "iDDPMPrecond":
        raise ModelError(
            f"--net-time: got integer for {config.precond}, whose time is continuous, expected "
            "float"
        )

    def call(x: Tensor, t: Tensor, label: Tensor | None) -> Tensor:
        labels = None
        if label is not None:
            labels = torch.nn.functional.one_hot(label, config.label_dim).to(x.dtype)
        sigma = t.to(x.device, x.dtype).expand(len(x))
        if x.dim() == 4 and len(x):
            x = x.contiguous(memory_format=torch.channels_last)
        return cast(Tensor, network(x, sigma, labels, rounded))

    return CheckpointModel(
        call,
        schedule_of(config, found),
        "x0",
        config.shape,
        dtype,
        digest,
        device,
        chosen_classes(config.label_dim, options.classes),
        (config, rounded),
        network=network,
    )


def settings(found: Checkpoint, options: PipelineOptions) -> dict[str, Any]:
    return {"family": "edm", **asdict(config_of(found, options))}


FAMILY = Family(
    "EDM", frozenset({"classes", "net_time", "config"}), matches, describe, load, settings
)
