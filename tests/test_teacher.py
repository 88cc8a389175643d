"""The teacher's pairs: made once and shared."""

from pathlib import Path

import torch

from ld3 import make_grid, make_solver
from ld3.teacher import teach
from ld3.zoo.toy import mixture


def test_pairs_are_made_once_and_shared(tmp_path: Path) -> None:
    model = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)
    grid, solver = make_grid("edm", model.schedule, 10), make_solver("unipc")
    seen: list[int] = []
    first = teach(model, "a", solver, grid, range(40), folder=tmp_path, progress=seen.append)
    assert seen == [32, 8]
    files = sorted(tmp_path.rglob("*.safetensors"))
    stamps = [file.stat().st_mtime_ns for file in files]
    again = teach(model, "a", solver, grid, [5, 33, 7], folder=tmp_path)
    assert torch.equal(again.target, first.target[[5, 33, 7]])
    assert torch.equal(again.noise, first.noise[[5, 33, 7]])
    assert [file.stat().st_mtime_ns for file in files] == stamps
    files[0].write_bytes(b"broken")  # is made anew
    assert torch.equal(
        teach(model, "a", solver, grid, range(40), folder=tmp_path).target, first.target
    )
    for other in (("b", grid, 1.0), ("a", make_grid("logsnr", model.schedule, 10), 1.0)):
        teach(model, other[0], solver, other[1], range(4), folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
