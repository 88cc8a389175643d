"""DiffDock's own network through the adapter.

Needs e3nn, and the sources of DiffDock v1 in the folder that LD3_DIFFDOCK names. Its searches for
neighbours are replaced by plain torch, its weights are made from their names.
"""

import importlib
import json
import math
import os
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ld3
from ld3.teacher import Teacher, make_pairs
from ld3.zoo.docking.diffdock import DiffDock, NoiseLevels

CASE = Path(__file__).parents[2] / "shared" / "fixtures" / "docking_net"
SOURCES = os.environ.get("LD3_DIFFDOCK", "")
LEVELS = NoiseLevels.of("v1")


@pytest.fixture(scope="module")
def case() -> dict[str, Tensor]:
    pytest.importorskip("e3nn", reason="e3nn is not there: DiffDock's network is made of it")
    pytest.importorskip("rdkit", reason="rdkit is not there: pip install 'ld3[docking]'")
    if not SOURCES or not Path(SOURCES, "models", "score_model.py").exists():
        pytest.skip("LD3_DIFFDOCK names no folder with the sources of DiffDock v1")
    if not CASE.with_suffix(".json").exists():
        pytest.skip(f"{CASE} is not there: outputs of DiffDock are kept outside of the repository")
    from safetensors.torch import load_file

    return load_file(CASE.with_suffix(".safetensors"))


@pytest.fixture(scope="module")
def network(case: dict[str, Tensor]) -> torch.nn.Module:
    """The original class, with stand-ins for what it imports and does not need here."""
    about = json.loads(CASE.with_suffix(".json").read_text())
    sizes = {name: shape for name, shape, _ in about["state"]}
    atom = [sizes[f"lig_node_embedding.atom_embedding_list.{i}.weight"][0] for i in range(16)]
    residue = [sizes["rec_node_embedding.atom_embedding_list.0.weight"][0]]
    stand_ins: dict[str, dict[str, Any]] = {
        "torch_scatter": {"scatter": scatter, "scatter_mean": scatter},
        "torch_cluster": {"radius": radius, "radius_graph": radius_graph},
        "datasets": {},
        "datasets.process_mols": {
            "lig_feature_dims": (atom, 0),
            "rec_residue_feature_dims": (residue, 0),
        },
        "utils": {"so3": None, "torus": None},
    }
    before = {name: sys.modules.get(name) for name in (*stand_ins, "models", "models.score_model")}
    for name, members in stand_ins.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)
    sys.path.insert(0, SOURCES)
    try:
        kind = importlib.import_module("models.score_model").TensorProductScoreModel
        net = kind(
            sigmas, torch.device("cpu"), embedding, lm_embedding_type="esm", **about["config"]
        )
    finally:
        sys.path.remove(SOURCES)
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
    state = net.state_dict()
    for name, shape, how in about["state"]:
        if how == "filled":
            state[name] = weight(name, shape)
        elif f"buffer/{name}" in case:
            state[name] = case[f"buffer/{name}"]
    net.load_state_dict(state, strict=False)
    return net.eval()


def weight(name: str, shape: list[int]) -> Tensor:
    """Numbers from a name: splitmix64."""
    with np.errstate(over="ignore"):
        i = np.arange(math.prod(shape), dtype=np.uint64)
        z = np.uint64(zlib.crc32(name.encode()) << 32) + i + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    u = (z >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
    if len(shape) > 1:
        u = u * math.sqrt(3 / math.prod(shape[1:]))
    else:
        u = 1 + 0.1 * u if name.endswith("weight") else 0.1 * u
    return torch.tensor(u, dtype=torch.float32).view(shape)


def scatter(
    source: Tensor, index: Tensor, dim: int = 0, dim_size: Any = None, reduce: str = "mean"
) -> Tensor:
    rows = int(index.max()) + 1 if dim_size is None else int(dim_size)
    total = source.new_zeros(rows, *source.shape[1:]).index_add(0, index, source)
    count = torch.bincount(index, minlength=rows).clamp_min(1)
    return total / count.view(-1, *[1] * (source.ndim - 1)) if reduce == "mean" else total


def radius(
    x: Tensor, y: Tensor, r: float, batch_x: Tensor, batch_y: Tensor, max_num_neighbors: int = 32
) -> Tensor:
    """Pairs (index in y, index in x) that are within r in one graph."""
    near = (torch.cdist(y.detach(), x.detach()) <= r) & (batch_y[:, None] == batch_x)
    return near.nonzero().T


def radius_graph(pos: Tensor, r: float, batch: Tensor) -> Tensor:
    pairs = radius(pos, pos, r, batch, batch)
    return pairs[:, pairs[0] != pairs[1]]


def embedding(t: Tensor, width: int = 8) -> Tensor:
    rates = torch.exp(-math.log(10000) / (width // 2 - 1) * torch.arange(width // 2))
    angle = 10000 * t.float()[:, None] * rates
    return torch.cat([angle.sin(), angle.cos()], 1)


def sigmas(*times: Tensor) -> tuple[Tensor, ...]:
    ranges = (LEVELS.tr, LEVELS.rot, LEVELS.tor)
    return tuple(low ** (1 - t) * high**t for t, (low, high) in zip(times, ranges, strict=True))


class Graph(dict[Any, Any]):
    """Parts by name, as the network expects them."""


def graph(case: dict[str, Tensor], poses: Tensor, t: Tensor) -> Graph:
    """B copies of ligand and receptor; t (B,)."""
    count, atoms, residues = len(poses), poses.shape[1], len(case["rec_pos"])

    def repeated(value: Tensor) -> Tensor:
        return value.repeat(count, *[1] * (value.ndim - 1))

    def edges(index: Tensor, nodes: int) -> Tensor:
        shift = nodes * torch.arange(count).repeat_interleave(index.shape[1])
        return index.repeat(1, count) + shift

    def part(**members: Any) -> types.SimpleNamespace:
        return types.SimpleNamespace(**members)

    def times(nodes: int) -> dict[str, Tensor]:
        return dict.fromkeys(("tr", "rot", "tor"), t.repeat_interleave(nodes))

    batch = torch.arange(count)
    data = Graph()
    data["ligand"] = part(
        x=repeated(case["lig_x"]), pos=poses.float().flatten(0, 1), node_t=times(atoms),
        batch=batch.repeat_interleave(atoms), edge_mask=repeated(case["edge_mask"]),
    )  # fmt: skip
    data["receptor"] = part(
        x=repeated(case["rec_x"]), pos=repeated(case["rec_pos"]), node_t=times(residues),
        batch=batch.repeat_interleave(residues),
    )  # fmt: skip
    data["ligand", "ligand"] = part(
        edge_index=edges(case["edge_index"], atoms), edge_attr=repeated(case["edge_attr"])
    )
    data["receptor", "receptor"] = part(edge_index=edges(case["rec_edge_index"], residues))
    data.complex_t = dict.fromkeys(("tr", "rot", "tor"), t)  # type: ignore[attr-defined]
    data.num_graphs = count  # type: ignore[attr-defined]
    return data


def test_the_stand_ins_give_the_originals_outputs(
    case: dict[str, Tensor], network: torch.nn.Module
) -> None:
    with torch.no_grad():
        found = network(graph(case, case["lig_pos"], case["t"]))
    for got, name in zip(found, ("tr_f32", "rot_f32", "tor_f32"), strict=True):
        wanted = case[name]
        assert (got.view_as(wanted) - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_the_network_through_the_adapter(case: dict[str, Tensor], network: torch.nn.Module) -> None:
    """Heads become eps; gradients reach the times through steps and alignment."""
    from ld3.zoo.docking.ligand import Ligand

    def score(poses: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tr, rot, tor = network(graph(case, poses, t.float().expand(len(poses))))
        return tr, rot, tor.view(len(poses), -1)

    ligand = Ligand.from_smiles("CC(=O)Nc1ccc(OCCN(C)C)cc1")
    model = DiffDock(score, ligand, LEVELS, "heads", name="random weights")
    t = case["t"][:1].double()[0]
    eps = model.forward(case["lig_pos"][:1], t, None)
    s = torch.stack([part.log_sigma(t).exp() for part in model.schedule.parts])
    scale = -s * LEVELS.norms(t)
    heads = torch.cat([case[f"{n}_f32"][:1].flatten() for n in ("tr", "rot", "tor")])
    wanted = heads * scale[model.space.parts]
    assert (eps[0] - wanted).abs().max() < 1e-4 * wanted.abs().max()
    pairs = make_pairs(model, range(1), Teacher("euler-log", 0, "", "uniform", 3))
    times = ld3.make_grid("uniform", model.schedule, 2).times.requires_grad_()
    table = ld3.TunedSolver(ld3.make_solver("euler-log"), ld3.TimeGrid.of(times)).table(
        model.schedule
    )
    sample, _ = table.follow(ld3.bind(model), ld3.prior(model, range(1)), space=model.space)
    (slope,) = torch.autograd.grad((sample - pairs.target).square().mean(), times)
    assert bool(torch.isfinite(slope).all()) and slope[1] != 0
