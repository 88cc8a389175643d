"""Networks without gradients: `fashion` as an ONNX file, in float32 and quantised to int8.

    pip install onnx onnxscript onnxruntime
    ld3 learn --model examples.onnx_fashion:int8 --distance perceptual --gradient-free
    python examples/onnx_fashion.py

The last learns for both networks by forward passes only and uses each plan with each of them. Files
are made once, in runs/onnx.
"""

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import ld3
from ld3 import zoo
from ld3.errors import ModelError
from ld3.models import Cond
from ld3.seeds import seeds_for

FOLDER = Path("runs/onnx")
CALIBRATION = 48  # samples whose trajectories set the scales of the quantised numbers


@dataclass(frozen=True)
class OnnxModel(ld3.FunctionModel):
    """A model whose network is an ONNX file."""

    digest: str = "unknown"

    @property
    def identity(self) -> str:  # type: ignore[override]
        return self.digest


class Raw(nn.Module):
    """The network with its preconditioning: x (B, 1, 28, 28), sigma (B,), label (B,) -> x0."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = zoo.load("fashion").raw

    def forward(self, x: Tensor, sigma: Tensor, label: Tensor) -> Tensor:
        return self.raw(x, sigma, label)


def float32() -> OnnxModel:
    """`fashion` run by onnxruntime."""
    return _model(_exported())


def int8() -> OnnxModel:
    """The same with weights and activations in eight bits."""
    return _model(_quantised())


def _exported() -> Path:
    file = FOLDER / f"fashion-{zoo.SHIPPED['fashion'].digest}.onnx"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        example = (torch.zeros(2, 1, 28, 28), torch.ones(2), torch.zeros(2, dtype=torch.int64))
        batch = torch.export.Dim("batch", min=1, max=4096)
        part = file.with_suffix(".part")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter warns of itself
            torch.onnx.export(
                Raw().eval(),
                example,
                str(part),
                input_names=["x", "sigma", "label"],
                output_names=["x0"],
                dynamic_shapes=({0: batch}, {0: batch}, {0: batch}),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        part.rename(file)
    return file


def _quantised() -> Path:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    source = _exported()
    file = source.with_name(f"{source.stem}-int8.onnx")
    if file.exists():
        return file

    class Seen(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.calls = iter(list(_calls()))

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.calls, None)

    part = file.with_suffix(".part")
    quantize_static(
        str(source),
        str(part),
        Seen(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        weight_type=QuantType.QInt8,
        activation_type=QuantType.QUInt8,
        op_types_to_quantize=["Conv", "MatMul", "Gemm"],
    )
    part.rename(file)
    return file


def _calls() -> Iterator[dict[str, np.ndarray]]:
    """Inputs of the network along the trajectories of a few samples."""
    model = zoo.load("fashion")
    seeds = range(5_000_000_000, 5_000_000_000 + CALIBRATION)
    label = model.conditions(seeds)
    calls = []

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        sigma = t.float().expand(len(x))
        calls.append({"x": x.numpy(), "sigma": sigma.numpy(), "label": label.numpy()})
        return model.raw(x, sigma, label)

    k = ld3.knots(model.schedule, ld3.make_grid("edm", model.schedule, 10))
    with torch.no_grad():
        ld3.compile_table(ld3.make_solver("dpmpp"), k).run(denoise, ld3.prior(model, seeds))
    yield from calls


def _model(file: Path) -> OnnxModel:
    try:
        import onnxruntime
    except ImportError:
        raise ModelError(
            "model: expected onnxruntime; pip install onnx onnxscript onnxruntime"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    shipped = zoo.load("fashion")

    def forward(x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        label = cond if isinstance(cond, Tensor) else shipped.null(torch.empty(len(x)))
        given = {
            "x": x.detach().numpy(),
            "sigma": t.detach().float().expand(len(x)).numpy(),
            "label": label.numpy(),
        }
        return torch.from_numpy(session.run(["x0"], given)[0])

    return OnnxModel(
        forward,
        shipped.schedule,
        "x0",
        shipped.shape,
        torch.float32,
        make_conditions=shipped.conditions,
        make_null=shipped.null,
        digest=file.stem,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nfe", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each")
    args = parser.parse_args()
    models = {"float32": float32(), "int8": int8()}
    learned: dict[str, list[ld3.Plan]] = {}
    for name, model in models.items():
        word = f"examples.onnx_fashion:{name}"
        spec = ld3.RunSpec(
            model=word, nfe=(args.nfe,), judged=0, distance="perceptual", gradient_free=True
        )
        learned[name] = []
        for seed in range(args.seeds):
            (result,) = ld3.run_learn(spec.model_copy(update={"seed": seed}), model=model)
            learned[name].append(result.plan)
            best, cost = result.best_grid, result.plan.learned.evaluations
            print(
                f"{name}, seed {seed}: best known {best} {result.scores[best].distance:.5f}, "
                f"learned {result.scores['learned'].distance:.5f}, {cost} forward evaluations",
                flush=True,
            )
    print("plans of one network used with the other: held-out distance to that network's teacher")
    distance = zoo.perceptual()
    seeds = seeds_for("held-out", 128)
    for used, model in models.items():
        held = ld3.make_pairs(model, seeds)
        for name, plans in learned.items():
            found = []
            for plan in plans:
                samples = plan.sampler(model, force=True)(seeds)
                found.append(float(distance(samples, held.target).mean()))
            print(f"learned on {name:<8} used with {used:<8}", *(f"{d:.5f}" for d in found))


if __name__ == "__main__":
    main()
