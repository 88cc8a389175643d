"""Latent diffusion checkpoints: numbers of the original networks, names of the published files."""

import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import latent_layouts as small
from tests import pipelines as tiny
from torch import Tensor

import ld3
from ld3.cli import main
from ld3.errors import ModelError, SpecError, StoreError
from ld3.models import bind_network
from ld3.options import PipelineOptions
from ld3.plan import Plan
from ld3.report.experiments import result_lines
from ld3.runs.experiments import run_reproduce
from ld3.runs.experiments.spec import SPECS, read_experiment
from ld3.zoo.checkpoints.latent import (
    latent_kind,
    latent_model,
    latent_pipeline,
    to_diffusers_folder,
)
from ld3.zoo.checkpoints.latent_names import UNET, averaged
from ld3.zoo.checkpoints.latent_parts import (
    CLASSES,
    CONDITION,
    LDM,
    LDM_CLASS,
    SD,
    TEXT,
    make_coder,
    make_scheduler,
    make_unet,
    recognise_latent,
)
from ld3.zoo.checkpoints.load import convert_checkpoint, describe_checkpoint
from ld3.zoo.checkpoints.reader import read_checkpoint
from ld3.zoo.loading import load_model

pytest.importorskip("diffusers")

SHARED = Path(__file__).parents[2] / "shared" / "fixtures"

UNETS: dict[str, tuple[Any, small.Shapes]] = {
    "ldm_uncond": (replace(LDM, head_width=16, size=16), small.unet()),
    "ldm_class": (replace(LDM_CLASS, size=16), small.unet(context=24) | {CLASSES: (11, 24)}),
    "ldm_sd": (
        replace(SD, size=16),
        small.unet(4, mult=(1, 2, 4, 4), attention=(4, 2, 1), context=24),
    ),
}
CODERS = {
    "ldm_vq_f4": (replace(LDM, size=8), small.coder()),
    "ldm_kl": (replace(SD, size=8), small.coder(4, codes=None)),
}
FOUND = {  # of the original networks in float64: four values each, evenly spaced
    "ldm_uncond": (0.5125022956097, 0.06003032594312, -0.05648875408321, 0.3453059502027),
    "ldm_class": (0.004957012170857, 0.1363358110347, -0.2947278907114, -0.4594648330767),
    "ldm_sd": (-0.1777750041862, 0.2960221904713, -0.5934250507144, 0.07226617358996),
    "ldm_vq_f4": (-0.1445469245263, 0.04026810989906, -0.1787799034245, -0.3016847899543),
    "ldm_kl": (-0.09305839036653, 0.4361902754277, -0.1532548299528, 0.3929205406568),
}
LABELS = torch.tensor([3, 0, 9, 3])
TIMES = torch.tensor([0.0, 37.5, 500.0, 999.0], dtype=torch.float64)


def answer(name: str, dtype: torch.dtype) -> Tensor:
    """What our network of a fixture puts out on the fixture's input."""
    kind, shapes = UNETS[name]
    tensors = small.weights(shapes)
    network = make_unet(tensors, kind, dtype)
    channels = network.config.in_channels
    x = small.inputs(f"{name}/x", 4, channels, 16, 16).to(dtype)
    words = {}
    if name == "ldm_class":
        words["encoder_hidden_states"] = tensors[CLASSES][LABELS][:, None].to(dtype)
    if name == "ldm_sd":
        words["encoder_hidden_states"] = small.inputs("ldm_sd/context", 4, 7, 24).to(dtype)
    with torch.no_grad():
        return network(x, TIMES, **words).sample


def shared(name: str) -> dict[str, Tensor]:
    path = SHARED / f"{name}.safetensors"
    if not path.exists():
        pytest.skip(f"{path} is not there: fixtures are kept outside of the repository")
    return load_file(path)


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


# ---- numbers


@pytest.mark.parametrize("name", UNETS)
def test_unets_give_the_numbers_of_the_originals(name: str) -> None:
    found = answer(name, torch.float64).flatten()
    some = found[:: len(found) // 4][:4]
    assert error(some, torch.tensor(FOUND[name], dtype=torch.float64)) < 1e-10


@pytest.mark.parametrize("name", UNETS)
def test_unets_meet_the_whole_fixture(name: str) -> None:
    wanted = shared(name)
    assert error(answer(name, torch.float64), wanted["out_f64"]) < 1e-10
    assert error(answer(name, torch.float32), wanted["out_f32"]) < 1e-5


@pytest.mark.parametrize("name", CODERS)
def test_decoders_give_the_numbers_of_the_originals(name: str) -> None:
    kind, shapes = CODERS[name]
    network = make_coder(small.weights(shapes), kind, torch.float64)
    z = small.inputs(f"{name}/z", 2, network.config.latent_channels, 8, 8).double()
    found = network.decode(z).sample.flatten()
    some = found[:: len(found) // 4][:4]
    assert error(some, torch.tensor(FOUND[name], dtype=torch.float64)) < 1e-10
    assert network.config.scaling_factor == kind.scale


@pytest.mark.parametrize("name", CODERS)
def test_autoencoders_meet_the_whole_fixture(name: str) -> None:
    """Both ways, and the gradient, which passes straight through the quantiser."""
    wanted, (kind, shapes) = shared(name), CODERS[name]
    for dtype, end, allowed in ((torch.float64, "f64", 1e-10), (torch.float32, "f32", 1e-5)):
        network = make_coder(small.weights(shapes), kind, dtype)
        z = wanted["z"].to(dtype).requires_grad_()
        found = network.decode(z).sample
        slope = torch.autograd.grad((found * wanted["probe"].to(dtype)).sum(), z)[0]
        assert error(found.detach(), wanted[f"decoded_{end}"]) < allowed
        assert error(slope.float(), wanted["grad_z_f32"]) < 1e-5
        code = network.encode(wanted["image"].to(dtype))
        mean = code.latents if hasattr(code, "latents") else code.latent_dist.mean
        assert error(mean.float(), wanted["encoded_f32"]) < 1e-5
        if "codes" in wanted:
            near, _, (_, _, codes) = network.quantize(z.detach())
            assert torch.equal(codes.flatten(), wanted["codes"])
            assert error(near.float(), wanted["z_q_f32"]) < 1e-5


# ---- the published files

PUBLISHED = {
    "ldm-lsun_beds256": (
        LDM,
        small.unet(3, 224, (1, 2, 3, 4), (8, 4, 2)) | small.coder(3, 128, codes=8192),
        329_378_945,
    ),
    "ldm-cin256-v2": (
        LDM_CLASS,
        small.unet(3, 192, (1, 2, 3, 5), (8, 4, 2), 512)
        | small.coder(3, 128, codes=8192)
        | {CLASSES: (1001, 512)},
        456_755_873,
    ),
    "sd-v1": (
        SD,
        small.unet(4, 320, (1, 2, 4, 4), (4, 2, 1), 768) | small.coder(4, 128, (1, 2, 4, 4), None),
        943_174_827,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_name_and_shape_of_the_published_files(name: str) -> None:
    """On the meta device: nothing is filled. A name or shape that does not fit raises."""
    kind, shapes, count = PUBLISHED[name]
    tensors = {one: torch.empty(shape, device="meta") for one, shape in shapes.items()}
    unet, coder = (make(tensors, kind, torch.float32) for make in (make_unet, make_coder))
    own = sum(p.numel() for part in (unet, coder) for p in part.parameters())
    assert own + (tensors[CLASSES].numel() if CLASSES in tensors else 0) == count
    assert unet.config.sample_size == 64
    assert coder.config.sample_size == (512 if name == "sd-v1" else 256)
    if (SHARED / "layouts").exists():
        listed = json.loads((SHARED / "layouts" / f"{name}.json").read_text())
        assert {one: tuple(shape) for one, shape in listed["state"]} == shapes
        assert listed["parameters"] == count


# ---- files

Make = Callable[..., Path]
CONFIG = {"image_size": 8, "num_head_channels": 16, "num_heads": 2}


def layout(kind: str) -> small.Shapes:
    """A small checkpoint of each kind."""
    if kind == "sd":
        words = len(tiny.clip_tokenizer())
        unet = small.unet(4, mult=(1, 2), attention=(1,), context=16)
        return unet | small.coder(4, mult=(1, 1), codes=None) | small.text_encoder(words)
    classes = {CLASSES: (11, 24)} if kind == "ldm-class" else {}
    context = 24 if classes else None
    unet = small.unet(mult=(1, 2), attention=(1,), context=context)
    return unet | small.coder(mult=(1, 1)) | classes


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A file of small weights: safetensors with its configuration, or a Lightning checkpoint."""

    def made(kind: str, suffix: str = ".safetensors", **more: Tensor) -> Path:
        tensors = small.weights(layout(kind)) | more
        path = tmp_path / f"model{suffix}"
        if kind == "sd":
            tiny.clip_tokenizer().save_pretrained(tmp_path / "tokenizer")
        if suffix == ".safetensors":
            save_file(tensors, path, metadata={"ld3": json.dumps(CONFIG)})
        else:
            torch.save({"state_dict": tensors, "global_step": 7}, path)
        return path

    return made


@pytest.mark.parametrize("kind", ["ldm", "ldm-class", "sd"])
def test_a_file_is_a_model_and_a_folder(kind: str, make: Make, tmp_path: Path) -> None:
    """The same answers from the file and from the folder it is converted to."""
    checkpoint = read_checkpoint(make(kind))
    assert latent_kind(checkpoint).name == kind
    options = PipelineOptions(prompts=("a dog", "rain")) if kind == "sd" else None
    model = latent_model(checkpoint, options)
    ld3.check_model(model)
    assert model.shape == ((4 if kind == "sd" else 3), 8, 8)
    assert model.prediction == "eps"
    assert model.schedule == ld3.make_schedule("sd" if kind == "sd" else "ldm")
    folder = to_diffusers_folder(checkpoint, tmp_path / "folder")
    other = load_model(f"diffusers:{folder}", options=options).model
    x, t = ld3.prior(model, [0, 1]), torch.tensor(0.4321, dtype=torch.float64)
    with torch.no_grad():
        ours, theirs = (m.forward(x, t, m.conditions([0, 1])) for m in (model, other))
        assert error(theirs, ours) < 1e-5
        assert error(other.decode(x), model.decode(x)) < 1e-5
    assert model.decode(x).shape == (2, 3, 16, 16)
    assert (model.digest, model.identity) == (other.digest, other.identity)
    with pytest.raises(StoreError, match="not empty"):
        to_diffusers_folder(checkpoint, folder)


def test_a_folder_follows_the_umask(make: Make, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        folder = to_diffusers_folder(read_checkpoint(make("ldm-class")), tmp_path / "folder")
    finally:
        os.umask(before)
    for path in (folder, *folder.rglob("*")):
        assert not path.stat().st_mode & 0o077, path


def test_a_lightning_file_is_read_alike(make: Make, tmp_path: Path) -> None:
    """The published sizes hold where a file has no configuration."""
    checkpoint = read_checkpoint(make("ldm", ".ckpt"))
    assert checkpoint.kind == "lightning" and latent_kind(checkpoint) == LDM
    half = latent_pipeline(checkpoint, torch.bfloat16)
    assert half.unet.dtype == half.vqvae.dtype == torch.bfloat16
    assert half.unet.config.attention_head_dim == 32


def test_moving_averages_are_taken(make: Make) -> None:
    shapes = layout("ldm")
    extra = {name: small.weight(name, shape) for name, shape in small.averages(shapes)}
    extra |= {"model_ema.decay": torch.tensor(0.9999), "model_ema.num_updates": torch.tensor(3)}
    checkpoint = read_checkpoint(make("ldm", **extra))
    taken = averaged(checkpoint.tensors)
    assert len(taken) == sum(name.startswith(UNET) for name in shapes)
    name = "model_ema.diffusion_modeltime_embed0weight"
    assert torch.equal(taken["time_embed.0.weight"], extra[name])
    unet = latent_pipeline(checkpoint).unet
    assert torch.equal(unet.time_embedding.linear_1.weight, extra[name])
    told = describe_checkpoint(checkpoint.path)[1]
    assert "weights of the U-Net: moving averages" in told.notes


def test_classes_and_the_empty_class(make: Make) -> None:
    """Guidance leads away from the last row of the table."""
    checkpoint = read_checkpoint(make("ldm-class"))
    model = latent_model(checkpoint, PipelineOptions(classes=(3, 0)))
    table = checkpoint.tensors[CLASSES]
    cond = model.conditions([0, 1, 2])
    assert isinstance(cond, dict)
    assert torch.equal(cond["token"][:, 0], table[[3, 0, 3]])
    null = model.null(cond)
    assert isinstance(null, dict) and torch.equal(null["token"][:, 0], table[[10, 10, 10]])
    x, t = ld3.prior(model, [0, 1, 2]), torch.tensor(0.5, dtype=torch.float64)
    with torch.no_grad():
        with_class, without = (model.forward(x, t, one) for one in (cond, null))
        guided = bind_network(model, cond, guidance=2.0)(x, t)
    assert error(guided, without + 2 * (with_class - without)) < 1e-5
    assert len(latent_model(checkpoint).parts.rows["token"]) == 10
    with pytest.raises(SpecError, match="expected 0 to 9"):
        latent_model(checkpoint, PipelineOptions(classes=(10,)))


def test_the_guided_answer_of_the_original() -> None:
    wanted, (kind, shapes) = shared("ldm_class"), UNETS["ldm_class"]
    tensors = small.weights(shapes)
    unet = make_unet(tensors, kind, torch.float32)
    x = wanted["x"]
    with torch.no_grad():
        null = unet(x, TIMES, encoder_hidden_states=tensors[CLASSES][[10] * 4][:, None]).sample
    assert error(null, wanted["out_null_f32"]) < 1e-5
    guided = null + 2 * (answer("ldm_class", torch.float32) - null)
    assert error(guided, wanted["out_guided2_f32"]) < 1e-5


@pytest.mark.parametrize("kind", ["ldm", "ldm-class", "sd"])
def test_gradients_in_time_reach_through(kind: str, make: Make) -> None:
    model = latent_model(read_checkpoint(make(kind)), dtype=torch.float64)
    x, cond = ld3.prior(model, [0]), model.conditions([0])

    def value(t: Tensor) -> Tensor:
        return (model.forward(x, t, cond) * x).sum()

    t = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad(value(t), t)[0]
    step = 1e-6
    with torch.no_grad():
        ends = [value(t.detach() + way * step) for way in (1, -1)]
    assert abs(float(slope - (ends[0] - ends[1]) / (2 * step))) < 1e-5 * abs(float(slope))


def test_other_betas_of_a_file_are_used(make: Make) -> None:
    betas = torch.linspace(0.0015**0.5, 0.0195**0.5, 1000, dtype=torch.float64).square()
    usual = make_scheduler({"betas": betas.float()}, LDM)
    assert usual.config.trained_betas is None
    own = make_scheduler({"betas": betas.float() / 2}, LDM)
    assert abs(own.config.trained_betas[0] - 0.00075) < 1e-9
    checkpoint = read_checkpoint(make("ldm", betas=betas.float() / 2))
    schedule = latent_model(checkpoint).schedule
    assert schedule != ld3.make_schedule("ldm")


def test_descriptions(make: Make) -> None:
    checkpoint, told = describe_checkpoint(make("ldm-class"))
    assert told.schedule == "1000 steps, sqrt(beta) linear 0.0015 to 0.0195"
    assert told.shape == (3, 8, 8) and told.conditions.startswith("classes 0-9")
    assert told.parameters == sum(tensor.numel() for tensor in checkpoint.tensors.values())
    assert "weights of the U-Net: as trained" in told.notes
    assert "latents are divided by 1.0 before they are decoded" in told.notes


def test_a_file_by_its_name_alone(make: Make, tmp_path: Path) -> None:
    """`--model FILE`, and what `ld3 convert` makes of it: a folder, or a file with its sizes."""
    path = make("ldm", ".ckpt")
    sizes = tmp_path / "sizes.json"
    sizes.write_text(json.dumps(CONFIG))
    options = PipelineOptions(config=str(sizes))
    loaded = load_model(str(path), options=options)
    file = convert_checkpoint(path, tmp_path / "small.safetensors", options)
    folder = convert_checkpoint(path, tmp_path / "small", options)
    for name in (str(file), f"diffusers:{folder}"):
        again = load_model(name)
        assert again.digest == loaded.digest and again.model.shape == (3, 8, 8)
        assert again.identity == loaded.identity
    with pytest.raises(SpecError, match="--embedded-guidance: got an option that a file of"):
        load_model(str(path), options=PipelineOptions(embedded_guidance=2.0))


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o002, 0o664)])
def test_converted_files_follow_the_umask(
    umask: int, mode: int, make: Make, tmp_path: Path
) -> None:
    """Weights, too, of a folder and of a file."""
    path, before = make("ldm"), os.umask(umask)
    try:
        for out in ("folder", "a.safetensors"):
            convert_checkpoint(path, tmp_path / "out" / out)
    finally:
        os.umask(before)
    files = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".json", ".safetensors"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {mode}


def test_a_plan_of_a_file_with_sizes_of_its_own_fits_the_folder(make: Make, tmp_path: Path) -> None:
    """The folder has the configuration inside, so the plan's --config is left out."""
    path, sizes = make("ldm", ".ckpt"), tmp_path / "sizes.json"
    sizes.write_text(json.dumps(CONFIG))
    options = PipelineOptions(config=str(sizes))
    plan = ld3.learn(
        load_model(str(path), options=options).model, solver="euler", nfe=2, pairs=2, held_out=0,
        distance="l2", preset="fast", start="uniform", recipe={"epochs": 1},
    )  # fmt: skip
    part = plan.model.model_copy(update={"name": str(path), "options": options})
    plan = plan.model_copy(update={"model": part})
    folder = f"diffusers:{convert_checkpoint(path, tmp_path / 'folder', options)}"
    one, two = (ld3.run_sample(plan, [0], "cpu", model=name) for name in (None, folder))
    assert error(two, one) < 1e-5


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ldm", ""),
        ("ldm-class", "--label 3 --label 5 --guidance 2"),
        ("sd", "--prompt rain --guidance 2"),
    ],
)
def test_learn_sample_export_and_compare_by_the_command(
    kind: str, options: str, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan knows the file, its labels and its guidance."""

    def run(words: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(words.split())
        said = capsys.readouterr()
        assert end.value.code == 0, said.err
        return said.out

    model = f"--model {make(kind)} {options}"
    sizes = "--nfe 3 --preset fast --pairs 2 --held-out 2 --start logsnr --teacher-steps 6"
    sizes += " --recipe epochs=1"
    said = run(f"learn {model} {sizes} --solver euler --out {tmp_path / 'runs'}")
    path = said.split()[-1]
    plan = Plan.load(path)
    said_of = {
        "ldm-class": PipelineOptions(classes=(3, 5)),
        "sd": PipelineOptions(prompts=("rain",)),
    }
    assert plan.model.options == said_of.get(kind)
    assert plan.model.guidance == (2 if options else 1)
    assert ld3.run_sample(plan, [0, 1], "cpu", force=False).shape == (2, 3, 16, 16)
    run(f"export {path} --to diffusers --out {tmp_path / 'diffusers'}")
    assert list((tmp_path / "diffusers").rglob("scheduler_config.json"))
    methods = "--methods uniform,ld3 --solvers euler --valid 2"
    run(f"compare {model} {sizes} {methods} --out {tmp_path / 'compared'}")
    (block,) = json.loads((tmp_path / "compared" / "compare.json").read_text())["blocks"]
    assert {row["method"] for row in block["rows"]} == {"uniform", "ld3"}


def test_reproduce_on_a_file(make: Make, tmp_path: Path) -> None:
    """The paper's settings, made small; beside them the paper's numbers for this model."""
    text = (SPECS / "latent.toml").read_text()
    small_sizes = '[quick.compare]\nmethods = ["uniform", "edm"]\nteacher_steps = 4\n'
    (tmp_path / "latent.toml").write_text(text.replace("[quick.compare]\n", small_sizes))
    file = make("ldm").rename(tmp_path / "lsun_beds256.safetensors")
    experiment = read_experiment(tmp_path / "latent.toml")
    result = run_reproduce(experiment, str(file), quick=True, distance="l2", out=tmp_path)
    ours, paper = result.tables
    assert ours.title == "Distance to the teacher"
    assert paper.title.startswith("The paper's Table 21, LSUN-Bedroom, Fréchet distance")
    assert any("20.15" in line for line in result_lines(result))


# ---- what is refused


def test_other_checkpoints_are_not_latent() -> None:
    assert recognise_latent({"input_blocks.0.0.weight": torch.zeros(1)}) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model.other.weight": (3,)}, "got model.other.weight, expected names below"),
        ({f"{UNET}input_blocks.1.0.more.weight": (3,)}, "got model.diffusion_model.input_blocks"),
        ({f"{UNET}out.0.weight": (31,)}, r"conv_norm_out.weight .*\(31,\), expected \(32,\)"),
        ({f"{UNET}out.0.weight": None}, "got no weights for conv_norm_out.weight"),
        ({f"{UNET}out.2.weight": (6, 32, 3, 3)}, "from 3 to 6 channels"),
        ({"first_stage_model.decoder.odd": (3,)}, "got first_stage_model.decoder.odd"),
        ({"first_stage_model.decoder.conv_in.weight": None}, "expected both in one file"),
        ({"first_stage_model.quantize.embedding.weight": None}, "without cond_stage_model"),
        ({"cond_stage_model.model.positional_embedding": (3,)}, "Stable Diffusion 2"),
        ({CLASSES: (11, 5)}, "expected both or neither"),
    ],
)
def test_files_that_do_not_fit_give_one_line(
    change: dict[str, tuple[int, ...] | None], said: str, tmp_path: Path
) -> None:
    shapes = {name: shape for name, shape in (layout("ldm") | change).items() if shape is not None}
    path = tmp_path / "model.safetensors"
    save_file(small.weights(shapes), path, metadata={"ld3": json.dumps(CONFIG)})
    refused(path, said)


def refused(path: Path, said: str) -> None:
    """By inspection, by both conversions and by loading: in one line, and nothing is written."""
    before = sorted(path.parent.iterdir())
    for use in (
        lambda: describe_checkpoint(path),
        lambda: convert_checkpoint(path, path.parent / "out.safetensors"),
        lambda: convert_checkpoint(path, path.parent / "out"),
        lambda: latent_model(read_checkpoint(path)),
    ):
        with pytest.raises(ModelError, match=said) as caught:
            use()
        assert "\n" not in str(caught.value)
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("kind", "name", "tensor", "said"),
    [
        ("ldm-class", CLASSES, torch.ones(11, 5), r"\(11, 5\), expected \(classes, 24\)"),
        ("ldm-class", f"{CONDITION}more", torch.ones(2), "got cond_stage_model.more, expected"),
        ("sd", f"{TEXT}text_model.more.weight", torch.ones(2), "more.weight, which CLIPTextModel"),
        ("sd", f"{TEXT}text_model.final_layer_norm.bias", torch.ones(3), r"shape \(3,\), expected"),
        ("ldm", f"{UNET}out.2.weight", torch.ones(3, 32, 3, 3).int(), "expected floating point"),
        ("ldm", "model_ema.diffusion_modelout0bias", torch.ones(32), "got none as the average"),
        ("ldm", "model_ema.other", torch.ones(2), "got model_ema.other, expected averages"),
        ("ldm", "betas", torch.ones(2, 2), "betas of shape"),
        ("ldm", "betas", torch.full((1000,), torch.nan), "betas of shape"),
        ("ldm", f"{UNET}input_blocks.1.1.proj_out.weight", torch.ones(32, 32, 3), "no network"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_every_use(
    kind: str, name: str, tensor: Tensor, said: str, make: Make
) -> None:
    refused(make(kind, **{name: tensor}), said)


def test_averages_of_another_shape_than_the_weights(make: Make) -> None:
    averages = {name: small.weight(name, s) for name, s in small.averages(layout("ldm"))}
    averages["model_ema.diffusion_modelout0bias"] = torch.ones(31)
    refused(make("ldm", **averages), r"got \[31\] as the average")


@pytest.mark.parametrize("kind", ["ldm", "ldm-class", "sd"])
def test_any_tensor_that_is_missing_or_of_another_shape_is_refused(
    kind: str, make: Make, tmp_path: Path
) -> None:
    """Some names of a file: without it, and with one row more. Tables may have any length."""
    make(kind)  # with the vocabulary beside it
    whole, path = small.weights(layout(kind)), tmp_path / "changed.safetensors"
    for name in [n for n in sorted(whole) if "embedding.weight" not in n][::43]:
        for changed in (None, torch.cat([whole[name], whole[name][:1]])):
            tensors = {n: t for n, t in whole.items() if n != name}
            if changed is not None:
                tensors[name] = changed
            save_file(tensors, path, metadata={"ld3": json.dumps(CONFIG)})
            with pytest.raises(ModelError) as caught:
                describe_checkpoint(path)
            assert "\n" not in str(caught.value)


def test_stable_diffusion_without_a_vocabulary(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    path = make("sd")
    (tmp_path / "tokenizer").rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="folder named tokenizer beside the file") as caught:
        latent_model(read_checkpoint(path))
    assert "\n" not in str(caught.value)
