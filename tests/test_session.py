"""A session: nothing twice, nothing more than asked for, nothing that is not finite."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

import ld3
from ld3.errors import ModelError
from ld3.models import Cond
from ld3.runs.cache import Cache
from ld3.runs.session import Session, open_session, reference_for
from ld3.runs.spec import RunSpec
from ld3.seeds import seeds_for
from ld3.teacher import Teacher, make_pairs
from ld3.zoo.toy import mixture

TOY = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)
FEW = Teacher(steps=6)


@dataclass
class Counted:
    """A toy whose calls are counted; it may fail at one seed below one noise level."""

    sizes: list[int] = field(default_factory=list)
    bad: Tensor | None = None  # the noise at which it gives NaN
    below: float = 1.0
    rows: Tensor | None = None  # where in the batch it is

    def __call__(self, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
        self.sizes.append(len(x))
        out = TOY.forward(x, t, cond)
        if self.bad is None:
            return out
        if float(t) > 79:
            self.rows = (x / 80 - self.bad).abs().amax(1) < 1e-6
        broken = self.rows is not None and len(self.rows) == len(x) and float(t) < self.below
        return torch.where(self.rows[:, None], torch.nan, out) if broken else out


def session_of(counted: Counted, folder: Path | None, batch: int = 64) -> Session:
    model = ld3.FunctionModel(counted, TOY.schedule, "x0", (2,))
    spec = RunSpec(batch=batch)
    made = open_session(spec, FEW, Cache(folder), model=model, gradients=False)
    counted.sizes.clear()
    return made


def table(name: str, steps: int = 4) -> ld3.Table:
    return ld3.TunedSolver(
        ld3.make_solver("dpmpp"), ld3.make_grid(name, TOY.schedule, steps)
    ).table(TOY.schedule)


def test_only_what_is_asked_for_is_made_and_once(tmp_path: Path) -> None:
    counted = Counted()
    session = session_of(counted, tmp_path)
    session.held_out(8)
    assert sum(counted.sizes) == 8 * FEW.steps
    session.held_out(8)
    session.score(table("edm"), 8)  # and the reference, of twice as many steps, and four calls
    assert sum(counted.sizes) == 8 * (FEW.steps + 2 * FEW.steps + 4)
    again = Counted()
    second = session_of(again, tmp_path)
    assert second.score(table("edm"), 8) == session.score(table("edm"), 8)
    assert again.sizes == []


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_batches_are_never_larger_than_asked_for(tmp_path: Path, batch: int) -> None:
    counted = Counted()
    session = session_of(counted, None, batch)
    session.training(7, 0)
    session.score(table("edm"), 7)
    assert max(counted.sizes) == min(batch, 7)


def test_batches_do_not_change_scores() -> None:
    scores = [session_of(Counted(), None, batch).score(table("edm"), 9) for batch in (2, 64)]
    for key, values in scores[0].items():
        assert values == pytest.approx(scores[1][key], rel=1e-4)


def test_one_reference_that_is_finer_than_the_teacher(tmp_path: Path) -> None:
    assert reference_for(Teacher("euler", 1, "", "edm", 30)) == Teacher(steps=60)
    assert reference_for(FEW, 17).steps == 17
    session = session_of(Counted(), tmp_path)
    seeds = seeds_for("held-out", 5)
    wanted = make_pairs(TOY, seeds, Teacher(steps=12)).target
    assert torch.allclose(session.exact(5), wanted, atol=1e-5)


def test_a_sample_that_is_not_finite_is_named_and_never_stored(tmp_path: Path) -> None:
    seeds = seeds_for("training", 6)
    counted = Counted(bad=ld3.noise([seeds[4]], (2,))[0])
    session = session_of(counted, tmp_path)
    with pytest.raises(
        ModelError, match=r"seed 4 \(1 of 6 in this batch\), first at t = 0"
    ) as said:
        session.training(6, 0)
    assert "float32" in str(said.value) and "nothing was stored" in str(said.value)
    assert not list(tmp_path.rglob("*.safetensors"))
    good = session_of(Counted(), tmp_path).training(6, 0)
    assert bool(torch.isfinite(good.target).all())


def test_scores_of_samples_that_are_not_finite_are_empty(tmp_path: Path) -> None:
    session = session_of(Counted(), tmp_path)
    own = table("edm")
    broken = ld3.Table(torch.full_like(own.weights, 1e38).tril(), own.net_times)
    assert session.score(broken, 4) == {}
    huge = ld3.Table(own.weights.clone(), own.net_times)
    huge.weights[-1] *= 1e25
    assert session.score(huge, 4) == {}  # samples are finite, but their distance is not
