"""The ONNX example: the same answers as the network it was made from, and learning from them."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime", reason="pip install onnx onnxscript onnxruntime")
pytest.importorskip("onnxscript", reason="pip install onnx onnxscript onnxruntime")

from examples import onnx_fashion

from ld3 import RunSpec, prior, run_learn, zoo


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx")


def test_the_exported_network_answers_alike(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_fashion, "FOLDER", folder)
    ours, theirs = zoo.load("fashion"), onnx_fashion.float32()
    x, cond = prior(ours, range(3)), ours.conditions(range(3))
    for sigma in (80.0, 2.0, 0.01):
        t = torch.tensor(sigma)
        apart = ours.forward(x * sigma / 80, t, cond) - theirs.forward(x * sigma / 80, t, cond)
        assert apart.abs().max() < 1e-4


def test_learning_for_the_quantised_network(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_fashion, "FOLDER", folder)
    monkeypatch.setattr(onnx_fashion, "CALIBRATION", 8)
    spec = RunSpec(
        model="examples.onnx_fashion:int8", nfe=(4,), distance="perceptual", gradient_free=True,
        preset="fast", pairs=16, held_out=8, start="bump:0:3.5", out=tmp_path,
        recipe={"epochs": 3},
    )  # fmt: skip
    (result,) = run_learn(spec, model=onnx_fashion.int8())
    assert result.scores["learned"].distance < 0.9 * result.scores[result.best_grid].distance
    assert "int8" in result.plan.model.digest
