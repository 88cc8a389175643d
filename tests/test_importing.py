"""Schedules of others as plans: the numbers arrive, and the sample is theirs."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ld3
from ld3.cli import main
from ld3.errors import Ld3Error, SpecError
from ld3.importing import import_plan
from ld3.plan import ModelPart, Plan
from ld3.schedules import EDM, Discrete, Flow
from ld3.zoo.toy import mixture

pytestmark = [  # numpy 2 and torch, when diffusers calls numpy on tensors
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]
MEANS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def part(prediction: str = "eps") -> ModelPart:
    words = {"name": "toy", "digest": "0", "shape": [6], "prediction": prediction}
    return ModelPart.model_validate(words)


def levels(plan: Plan) -> Tensor:
    schedule = plan.noise_schedule
    if isinstance(schedule, Flow):
        return plan.grid.times
    return torch.exp(-schedule.lam(plan.grid.times))


# ---- lists

AYS = [14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029]


@pytest.mark.parametrize("form", ["inline", "text", "json", "object", "known"])
def test_a_list_of_sigmas(form: str, tmp_path: Path) -> None:
    source = {"inline": ", ".join(map(str, AYS)), "known": "ays-sd15"}.get(form, "")
    steps = 10 if form == "known" else None
    if form in ("text", "json", "object"):
        file = tmp_path / ("list.txt" if form == "text" else "list.json")
        content: Any = {"sigmas": AYS} if form == "object" else AYS
        file.write_text("\n".join(map(str, AYS)) if form == "text" else json.dumps(content))
        source = str(file)
    sd = ld3.make_schedule("sd")
    made = import_plan(source, schedule=sd, model=part(), steps=steps)
    assert made.plan.nfe == 10 and made.plan.solver.name == "dpmpp"
    slack = 5e-3 if form == "known" else 1e-9  # known grids are stretched to the schedule's ends
    assert levels(made.plan)[1:-1].tolist() == pytest.approx(AYS[1:-1], rel=slack)
    assert (made.plan.times[0], made.plan.times[-1]) == (sd.t_max, sd.t_min)


def test_the_end_of_a_list() -> None:
    sd, flow = ld3.make_schedule("sd"), Flow()
    ends = {
        "14.6,2.0,0.0": (2, "the end at 0 is moved"),
        "14.6,2.0,0.029": (2, "the end at 0.029 is moved"),
        "14.6,2.0,0.4": (3, "a step to the end, 0.02917, is added"),
    }
    for source, (steps, said) in ends.items():
        made = import_plan(source, schedule=sd, model=part())
        assert len(made.plan.times) == steps + 1
        assert any(said in note for note in made.notes), made.notes
    made = import_plan("1.0,0.8,0.4,0.0", schedule=flow, model=part("flow"))
    assert made.plan.times == pytest.approx([0.999, 0.8, 0.4, 0.001])
    assert "1 to 0.999" in " ".join(made.notes)
    edm = import_plan("80,5,0.5,0.002", schedule=EDM(), model=part("x0"))
    assert edm.plan.times == pytest.approx([80, 5, 0.5, 0.002]) and not edm.notes


def test_timesteps() -> None:
    """As in diffusers' AysSchedules: N whole numbers for N steps."""
    sd = ld3.make_schedule("sd")
    assert isinstance(sd, Discrete)
    numbers = [999, 850, 736, 645, 545, 455, 343, 233, 124, 24]
    made = import_plan(",".join(map(str, numbers)), schedule=sd, model=part())
    assert made.plan.nfe == 10
    assert sd.index(made.plan.grid.times).tolist() == pytest.approx([*numbers, 0])
    flow = import_plan("950.5,400,30", kind="timesteps", schedule=Flow(), model=part("flow"))
    assert flow.plan.times == pytest.approx([0.9505, 0.4, 0.03, 0.001])
    times = import_plan("0.9,0.4,0.1", kind="times", schedule=sd, model=part())
    assert times.plan.times == pytest.approx([0.9, 0.4, 0.1])


@pytest.mark.parametrize(
    ("source", "words", "said"),
    [
        ("1,2,3", {}, "expected numbers that fall"),
        ("3,2,-1", {}, "none negative"),
        ("", {}, "got 0 numbers"),
        ("700,5,0.03", {"kind": "sigmas"}, "is the list for another model?"),
        ("nothing", {}, "expected the name of a known grid"),
        ("14.6;x=2", {}, "got more than numbers"),
        ("edm", {}, "steps: got none for edm"),
        ("14.6,2,0.03", {"steps": 5}, "got 5 for a list of 2 steps"),
        ("14.6,2,0.03", {"kind": "levels"}, "kind: got 'levels'"),
        ("diffusers:LCMScheduler", {"steps": 4}, "unknown scheduler 'LCMScheduler'"),
    ],
)
def test_wrong_sources_are_refused(source: str, words: dict[str, Any], said: str) -> None:
    if source.startswith("diffusers:"):
        pytest.importorskip("diffusers")
    with pytest.raises(Ld3Error) as error:
        import_plan(source, schedule=ld3.make_schedule("sd"), model=part(), **words)
    assert said in str(error.value) and "\n" not in str(error.value)


# ---- tables of weights


def velocities(model: Any, seen: list[float]) -> Any:
    """The toy's velocity, and what it was told."""

    def network(x: Tensor, t: Tensor) -> Tensor:
        seen.append(float(t))
        return model.forward(x, torch.as_tensor(t, dtype=torch.float64), None)

    return network


@pytest.mark.parametrize("base", [None, "euler"])
def test_neural_solver(base: str | None, tmp_path: Path) -> None:
    """x <- x - dt (sum_j c_j v_j + (1 - sum c) v), as published; times from 1 down."""
    file = tmp_path / "ns.py"
    file.write_text(
        "import nothing_that_exists\n"
        "DATA = dict(step3=dict(timedeltas=[0.2, 0.3, 0.4988],\n"
        "  coeffs=[[0.0, 0.0, 0.0], [-1.1, 0.0, 0.0], [0.4, -0.9, 0.0]]),\n"
        "  step2=dict(timedeltas=[0.5, 0.499], coeffs=[[0.0, 0.0], [-0.7, 0.0]]))\n"
        "open('ran', 'w')\n"
    )
    method = None if base is None else ld3.make_solver(base)
    flow = Flow(0.001, 0.9995)
    made = import_plan(str(file), steps=3, schedule=flow, model=part("flow"), solver=method)
    plan = made.plan
    assert plan.nfe == 3 and plan.solver.name == (base or "ipndm")
    model = mixture(MEANS, 0.3, flow, prediction="flow")
    start = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).double()
    seen: list[float] = []
    found = plan.table().run(velocities(model, seen), start)
    x, t, outs = start, 1.0, []
    for dt, row in zip([0.2, 0.3, 0.4988], [[], [-1.1], [0.4, -0.9]], strict=True):
        asked = torch.tensor(min(t, flow.t_max), dtype=torch.float64)
        outs.append(model.forward(x, asked, None))
        v = sum(c * o for c, o in zip(row, outs, strict=False)) + (1 - sum(row)) * outs[-1]
        x, t = x - dt * v, t - dt
    assert (found - x).abs().max() < 1e-9
    assert seen == pytest.approx([0.9995, 0.8, 0.5])
    with pytest.raises(SpecError, match="expected one of 2, 3"):
        import_plan(str(file), steps=4, schedule=flow, model=part("flow"))
    with pytest.raises(SpecError, match="expected a rectified flow"):
        import_plan(str(file), steps=3, schedule=EDM(), model=part("x0"))


def test_several_tables_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "ns.json"
    one = {"timedeltas": [0.5, 0.499], "coeffs": [[0.0, 0.0], [-0.7, 0.0]]}
    two = {"timedeltas": [0.3, 0.699], "coeffs": [[0.0, 0.0], [-0.7, 0.0]]}
    file.write_text(json.dumps({"A": {"step2": one}, "B": {"step2": two}}))
    words: dict[str, Any] = {"schedule": Flow(), "model": part("flow")}
    with pytest.raises(SpecError, match="several tables of 2 steps in A, B"):
        import_plan(str(file), steps=2, **words)
    assert import_plan(f"{file}#B", **words).plan.times[1] == pytest.approx(0.7)
    with pytest.raises(SpecError, match="unknown table 'C'"):
        import_plan(f"{file}#C", **words)


@pytest.mark.parametrize("shift", [None, 2.0])
def test_dyweight(shift: float | None, tmp_path: Path) -> None:
    """Weights that do not add up to one; the time goes on from their sum, times a scale."""
    weights = torch.tensor([[0.9, 0.0, 0.0], [-0.1, 1.05, 0.0], [0.0, -0.2, 1.1]])
    scales = torch.tensor([0.99, 0.97, 1.02])
    file = tmp_path / "nfe3.pt"
    torch.save({"dyweight_weights_raw": weights, "dyweight_t_scales": scales, "more": 1}, file)
    s = 3.0
    flow = Flow(0.001, s * 0.999 / (1 + (s - 1) * 0.999))
    made = import_plan(str(file), schedule=flow, model=part("flow"), shift=shift)
    s = shift or s
    aims = [s * u / (1 + (s - 1) * u) for u in (1, 2 / 3, 1 / 3, 0)]
    model = mixture(MEANS, 0.3, flow, prediction="flow")
    start = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).double()
    seen: list[float] = []
    found = made.plan.table().run(velocities(model, seen), start)
    x, t, outs, told = start, aims[0], [], []
    for n in range(3):
        told.append(float(scales.double()[n]) * t)
        outs.append(model.forward(x, torch.tensor(told[-1], dtype=torch.float64), None))
        row = weights.double()[n, : n + 1]
        x = x + (aims[n + 1] - t) * sum(w * o for w, o in zip(row, outs, strict=True))
        t = t + (aims[n + 1] - t) * float(row.sum())
    assert seen == pytest.approx(told, abs=1e-7)
    assert (found - x).abs().max() < 1e-6
    assert "weights add up to 0.900 .. 0.950" in made.notes[0]


def test_files_are_never_run(tmp_path: Path) -> None:
    """A pickle that calls a function is refused, and so is a table of the wrong shape."""

    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    words: dict[str, Any] = {"schedule": Flow(), "model": part("flow")}
    file = tmp_path / "table.pt"
    torch.save({"dyweight_weights_raw": Trap()}, file)
    with pytest.raises(Ld3Error, match="cannot be read as tensors alone"):
        import_plan(str(file), **words)
    assert not (tmp_path / "ran").exists()
    torch.save({"other": torch.ones(1)}, file)
    with pytest.raises(SpecError, match="expected a table of DyWeight"):
        import_plan(str(file), **words)
    names = ("dyweight_weights_raw", "dyweight_t_scales")
    torch.save(dict(zip(names, (torch.ones(2, 3), torch.ones(2)), strict=True)), file)
    with pytest.raises(SpecError, match="expected finite"):
        import_plan(str(file), **words)
    code = tmp_path / "table.py"
    code.write_text("raise SystemExit(open('ran', 'w'))\n")
    with pytest.raises(SpecError, match="got no timedeltas and coeffs"):
        import_plan(str(code), **words)


# ---- stock schedulers

TO_SIGMA_MIN = {"final_sigmas_type": "sigma_min"}  # others end at zero, which our grids do not


@pytest.mark.parametrize(
    ("name", "config", "noise", "prediction", "most"),
    [
        ("EulerDiscreteScheduler", {"use_karras_sigmas": True, **TO_SIGMA_MIN}, "sd", "eps", 0.002),
        ("EulerDiscreteScheduler", {"timestep_spacing": "trailing"}, "sd", "v", 0.05),
        ("DDIMScheduler", {"clip_sample": False, "set_alpha_to_one": False}, "sd", "eps", 1e-4),
        ("DPMSolverMultistepScheduler", TO_SIGMA_MIN, "sd", "eps", 0.002),
        ("UniPCMultistepScheduler", TO_SIGMA_MIN, "sd", "eps", 0.002),
        ("DEISMultistepScheduler", {}, "sd", "eps", 0.08),
        ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}, "flow", "flow", 0.005),
        ("UniPCMultistepScheduler", {"flow_shift": 3.0}, "flow", "flow", 0.01),
    ],
)
def test_stock_schedulers(
    name: str, config: dict[str, Any], noise: str, prediction: str, most: float, tmp_path: Path
) -> None:
    """The plan's sample is the scheduler's, but for ends at zero and rounded times."""
    diffusers = pytest.importorskip("diffusers")
    betas = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
    own = {**(betas if noise == "sd" else {}), **config}
    if "FlowMatch" not in name:
        own["prediction_type"] = {"eps": "epsilon", "v": "v_prediction"}.get(
            prediction, "flow_prediction"
        )
        own |= {"use_flow_sigmas": True} if noise == "flow" else {}
    scheduler = getattr(diffusers, name)(**own)
    scheduler.save_pretrained(tmp_path)
    schedule = ld3.make_schedule(noise)
    made = import_plan(f"diffusers:{tmp_path}", steps=8, schedule=schedule, model=part(prediction))
    scheduler.set_timesteps(8)
    told = ld3.schedules.in_network_units(schedule, made.plan.grid.net_times[:-1])
    nowhere = "DDIM" in name or (noise == "sd" and "use_karras_sigmas" in config)
    assert len(told) == 8 - nowhere  # a last step that begins where it ends
    theirs = scheduler.timesteps.tolist()[: len(told)]
    assert told.tolist() == pytest.approx([min(t, 999.0) for t in theirs], abs=1e-3)
    share = float(made.notes[-1].split("%")[0].split()[-1]) / 100
    assert share < most, made.notes


def test_a_stock_class_has_the_noise_of_the_model() -> None:
    diffusers = pytest.importorskip("diffusers")
    sd = ld3.make_schedule("sd")
    made = import_plan(
        "diffusers:DPMSolverMultistepScheduler", steps=6, schedule=sd, model=part("v")
    )
    stock = diffusers.DPMSolverMultistepScheduler(
        beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012
    )
    stock.set_timesteps(6)
    assert levels(made.plan)[:-1].tolist() == pytest.approx(stock.sigmas[:-1].tolist(), rel=2e-3)
    assert (made.plan.solver.name, made.plan.solver.order) == ("dpmpp", 2)


@pytest.mark.parametrize(("noise", "prediction"), [("sd", "eps"), ("flow", "flow")])
def test_a_stock_class_is_given_what_it_takes(noise: str, prediction: str) -> None:
    """diffusers logs a line about every other word, which no user could act on."""
    pytest.importorskip("diffusers")
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("diffusers.configuration_utils")
    logger.addHandler(handler)
    name = "EulerDiscreteScheduler" if noise == "sd" else "FlowMatchEulerDiscreteScheduler"
    words: dict[str, Any] = {"schedule": ld3.make_schedule(noise), "model": part(prediction)}
    try:
        import_plan(f"diffusers:{name}", steps=4, **words)
    finally:
        logger.removeHandler(handler)
    assert said == []


# ---- what can be done with it


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Imported, and exported."""

    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        said = capsys.readouterr()
        assert end.value.code == 0, said.err
        return said.out

    plan = tmp_path / "plan.json"
    out = run("import", "gits-sd", "--steps", "5", "--model", "fashion", "--solver", "unipc:2",
              "--out", str(plan))  # fmt: skip
    assert "GITS" in out and f"plan     {plan}" in out
    made = Plan.load(plan)
    assert made.model.name == "fashion" and made.learned.start == "imported from gits-sd"
    assert (made.solver.name, made.solver.order, made.nfe) == ("unipc", 2, 5)
    run("export", str(plan), "--to", "text", "--out", str(tmp_path / "text"))
    bare = tmp_path / "bare.json"
    run("import", "1,0.75,0.3,0", "--schedule", "flow", "--prediction", "flow", "--solver", "euler",
        "--out", str(bare))  # fmt: skip
    assert Plan.load(bare).model.name == "any flow"


def test_learning_starts_from_it(tmp_path: Path) -> None:
    model = mixture(MEANS, 0.3, ld3.make_schedule("sd"), prediction="eps")
    made = import_plan("gits-sd", steps=4, schedule=model.schedule, model=part()).plan
    made.save(tmp_path / "plan.json")
    spec = ld3.RunSpec(
        nfe=(4,), solver="dpmpp", preset="fast", pairs=4, held_out=4, recipe={"epochs": 1},
        start=str(tmp_path / "plan.json"), out=tmp_path,
    )  # fmt: skip
    learned = next(iter(ld3.run_learn(spec, model=model))).plan
    assert learned.learned.start == "plan" and learned.learned.starts.chosen == ["plan"]
    assert learned.times != made.times
    assert learned.times == pytest.approx(made.times, rel=0.5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("edm --steps 4", "--model: got none"),
        ("edm --steps 4 --model fashion --schedule sd", "give one of them"),
        ("edm --steps 4 --schedule sd --prediction noise", "one of x0, eps"),
    ],
)
def test_wrong_words(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["import", *words.split()])
    error = capsys.readouterr().err
    assert end.value.code == 2 and said in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "noise", "prediction"),
    [("FlowMatchEulerDiscreteScheduler", "sd", "eps"), ("DDIMScheduler", "flow", "flow"),
     ("EulerDiscreteScheduler", "flow", "flow"), ("DEISMultistepScheduler", "flow", "flow")],
)  # fmt: skip
def test_a_stock_class_for_another_kind_of_noise_is_refused(
    name: str, noise: str, prediction: str
) -> None:
    pytest.importorskip("diffusers")
    schedule = ld3.make_schedule(noise)
    with pytest.raises(SpecError, match=r"cannot step; expected one of \w+Scheduler") as error:
        import_plan(f"diffusers:{name}", steps=5, schedule=schedule, model=part(prediction))
    assert "\n" not in str(error.value)
