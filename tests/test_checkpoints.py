"""The paper's networks against the original code, and their files as models."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import ld3
from checkpoint_files import (
    ADM,
    FLAGS,
    NCSN,
    SONG,
    UNET,
    edm_pickle,
    image,
    lightning,
    openai_state,
    saved,
    state_of,
    weight,
    write,
)
from ld3.cli import main
from ld3.errors import ModelError, SpecError
from ld3.options import PipelineOptions
from ld3.schedules import Discrete
from ld3.zoo.checkpoints.edm import EDMConfig, Preconditioned
from ld3.zoo.checkpoints.edm_files import describe
from ld3.zoo.checkpoints.load import convert_checkpoint, inspect_checkpoint, load_checkpoint
from ld3.zoo.checkpoints.model import CheckpointModel
from ld3.zoo.checkpoints.openai_files import PUBLISHED, OpenAIConfig, config_of
from ld3.zoo.checkpoints.openai_unet import OpenAIUNet, UNetConfig
from ld3.zoo.checkpoints.reader import read_checkpoint
from ld3.zoo.loading import load_model

FIXTURES = Path(__file__).parents[2] / "shared" / "fixtures"
needs_fixtures = pytest.mark.skipif(not FIXTURES.exists(), reason="needs ../shared/fixtures")

DDPMPP = {**SONG, "img_resolution": 16, "model_channels": 16, "channel_mult": [1, 2, 2],
          "num_blocks": 2, "attn_resolutions": [8]}  # fmt: skip
NCSNPP = {**DDPMPP, **{key: NCSN[key] for key in ("embedding_type", "encoder_type",
          "channel_mult_noise", "resample_filter")}}  # fmt: skip
ADM_2 = {**ADM, "channel_mult": [1, 2], "attn_resolutions": [8, 4]}

EDM_CASES: dict[str, tuple[str, dict[str, Any], list[float], list[int], list[float]]] = {
    # case: preconditioner, configuration, sigma, labels, F at three places in the original
    "edm_ddpmpp_uncond": ("EDMPrecond", {**DDPMPP, "channel_mult": [2, 2, 2]},
        [80, 7.5, 0.4, 0.002], [],
        [0.0625781992992768, 0.4668922020211844, 0.44238033815141037]),
    "edm_ddpmpp_cond": ("EDMPrecond", {**DDPMPP, "label_dim": 10}, [80, 7.5, 0.4, 0.002],
        [3, 0, 9, 3], [-0.19785489177434376, -0.02199014534126232, 0.4389681548287513]),
    "edm_ncsnpp_uncond": ("EDMPrecond", NCSNPP, [80, 7.5, 0.4, 0.002], [],
        [0.01562508664634235, 0.6369437891772574, 0.04045939780222041]),
    "edm_adm_cond": ("EDMPrecond", ADM_2, [80, 7.5, 0.4, 0.002], [3, 0, 4, 3],
        [0.07496915677404628, -0.2809822135938326, -0.2309038294024931]),
    "vp_ddpmpp": ("VPPrecond", {**DDPMPP, "channel_mult": [2, 2, 2]}, [150, 7.5, 0.4, 0.002], [],
        [0.27576704693871373, 0.24351560850743426, -0.34114021447874443]),
    "ve_ncsnpp": ("VEPrecond", NCSNPP, [100, 7.5, 0.4, 0.02], [],
        [0.086094702036707, 0.8025329008722486, -0.0464536316777964]),
    "iddpm_adm": ("iDDPMPrecond", ADM_2, [80, 7.5, 0.4, 0.002], [3, 0, 4, 3],
        [0.3707551818164367, 1.810229000081869, 0.03819256636168957]),
}  # fmt: skip

_BASE = UNetConfig(32, (1, 2, 3), 2, (2, 4), num_heads=4, scale_shift=True)
OPENAI_CASES: dict[str, tuple[UNetConfig, list[float], list[int], list[float]]] = {
    "improved_imagenet64": (_BASE, [0, 37.25, 500, 999.75], [],
        [0.06029778596660067, 0.4869204135602903, 0.3002726889777781]),
    "improved_lsun256": (UNetConfig(32, (1, 1, 2), 2, (4,)), [0, 37, 500, 999], [],
        [0.04546990591035275, 0.9502640878972893, -0.03237137989983143]),
    "guided_lsun_legacy": (UNetConfig(32, (1, 1, 2), 2, (2, 4), num_head_channels=16,
        scale_shift=True, resblock_updown=True), [0, 37, 500.5, 999], [],
        [0.6624366607541438, 0.3323549392134415, -0.5576882621808874]),
    "guided_new_order": (UNetConfig(32, (1, 2, 3), 2, (1, 2, 4), num_head_channels=32,
        num_classes=7, scale_shift=True, resblock_updown=True, new_order=True),
        [0, 37, 500.5, 999], [3, 0, 6, 3],
        [0.23548678583308366, 0.015982014912753823, -0.3092817427748686]),
}  # fmt: skip


def frozen(network: nn.Module, buffers: dict[str, Tensor] | None = None) -> Any:
    network.load_state_dict(state_of(network, buffers))
    return network.eval().requires_grad_(False)


def edm_network(case: str, buffers: dict[str, Tensor] | None = None) -> Any:
    precond, words, *_ = EDM_CASES[case]
    return frozen(Preconditioned(EDMConfig.read({**words, "precond": precond})), buffers)


def one_hot(labels: list[int], count: int) -> Tensor | None:
    return nn.functional.one_hot(torch.tensor(labels), count).double() if labels else None


def apart(a: Tensor, b: Tensor) -> float:
    return float(((a - b).abs().max() / b.abs().max()).detach())


# Networks against the original code


@pytest.mark.parametrize("case", EDM_CASES)
def test_edm_networks_meet_numbers_of_the_original(case: str) -> None:
    _, words, levels, labels, wanted = EDM_CASES[case]
    network, size = edm_network(case).double(), words["img_resolution"]
    sigma = torch.tensor(levels, dtype=torch.float64)
    x = image(f"{case}/x", (4, 3, size, size)) * (sigma**2 + 0.25).sqrt()[:, None, None, None]
    rounded = case == "iddpm_adm"
    raw = network.raw(x, sigma, one_hot(labels, words["label_dim"]), rounded)
    got = raw.flatten()[[0, 100, -1]].tolist()
    assert got == pytest.approx(wanted, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("case", OPENAI_CASES)
def test_openai_networks_meet_numbers_of_the_original(case: str) -> None:
    config, times, labels, wanted = OPENAI_CASES[case]
    network = frozen(OpenAIUNet(config)).double()
    label = torch.tensor(labels) if labels else None
    out = network(image(f"{case}/x", (4, 3, 16, 16)), torch.tensor(times).double(), label)
    assert out.flatten()[[0, 100, -1]].tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@needs_fixtures
@pytest.mark.parametrize("case", EDM_CASES)
def test_edm_fixtures(case: str) -> None:
    told = json.loads((FIXTURES / f"{case}.json").read_text())
    data = load_file(FIXTURES / f"{case}.safetensors")
    buffers = {name[7:]: value for name, value in data.items() if name.startswith("buffer/")}
    network, labels = edm_network(case, buffers), data.get("class_labels")
    assert [[n, list(v.shape)] for n, v in network.state_dict().items()] == [
        row[:2] for row in told["state"]
    ]
    rounded = case == "iddpm_adm"
    single = network(data["x"], data["sigma"].float(), labels, rounded)
    assert apart(single, data["denoised_f32"]) < 1e-5
    if labels is not None:
        plain = network(data["x"], data["sigma"].float(), None, rounded)
        assert apart(plain, data["denoised_nolabel_f32"]) < 1e-5
    network.double()
    labels = None if labels is None else labels.double()
    x, sigma = data["x"].double().requires_grad_(), data["sigma"].requires_grad_()
    denoised = network(x, sigma, labels, rounded)
    assert apart(network.net_time(sigma, rounded), data["net_time_f64"]) < 1e-10
    assert apart(network.raw(x, sigma, labels, rounded), data["raw_f64"]) < 1e-10
    assert apart(denoised, data["denoised_f64"]) < 1e-10
    if "probe" in data:
        probe = (denoised * data["probe"]).sum()
        grad_x, grad_sigma = torch.autograd.grad(probe, [x, sigma])
        assert apart(grad_x, data["grad_x_f64"]) < 1e-10
        assert apart(grad_sigma, data["grad_sigma_f64"]) < 1e-10


@needs_fixtures
@pytest.mark.parametrize("case", OPENAI_CASES)
def test_openai_fixtures(case: str) -> None:
    told = json.loads((FIXTURES / f"{case}.json").read_text())
    data = load_file(FIXTURES / f"{case}.safetensors")
    network = frozen(OpenAIUNet(OPENAI_CASES[case][0]))
    assert [[n, list(v.shape)] for n, v in network.state_dict().items()] == [
        row[:2] for row in told["state"]
    ]
    single = network(data["x"], data["net_time"].float(), data.get("y"))
    assert apart(single, data["out_f32"]) < 1e-5
    x, time = data["x"].double().requires_grad_(), data["net_time"].requires_grad_()
    out = network.double()(x, time, data.get("y"))
    assert apart(out, data["out_f64"]) < 1e-10
    grad_x, grad_time = torch.autograd.grad((out * data["probe"]).sum(), [x, time])
    assert apart(grad_x, data["grad_x_f64"]) < 1e-10
    assert apart(grad_time, data["grad_time_f64"]) < 1e-10


LAYOUTS = sorted((FIXTURES / "layouts").glob("*.json")) if FIXTURES.exists() else []
OURS = [path for path in LAYOUTS if path.stem.startswith("edm-") or "flags" in path.read_text()]
FILES = {
    "imagenet64_uncond_100M_1500K": "imagenet64_uncond",
    "cifar10_uncond_50M_500K": "cifar10_uncond",
    "imagenet64_cond_270M_250K": "imagenet64_cond",
    "lsun_uncond_100M": "lsun_uncond",
    "lsun_bedroom": "guided_lsun",
    "64x64_diffusion": "guided_imagenet64",
    "256x256_diffusion": "guided_imagenet256",
}
PARAMETERS = {
    "imagenet64_uncond": 121_063_942,
    "cifar10_uncond": 52_546_438,
    "imagenet64_cond": 273_049_350,
    "lsun_uncond": 113_676_678,
    "guided_lsun": 552_814_086,
    "guided_imagenet64": 295_904_454,
    "guided_imagenet256": 553_838_086,
}
FULL: dict[str, tuple[dict[str, Any], int]] = {
    "cifar10 vp": ({**SONG, "img_resolution": 32, "model_channels": 128, "num_blocks": 4,
                    "channel_mult": [2, 2, 2], "attn_resolutions": [16]}, 55_733_891),
    "cifar10 ve": ({**NCSN, "img_resolution": 32, "model_channels": 128, "num_blocks": 4,
                    "channel_mult": [2, 2, 2], "attn_resolutions": [16]}, 56_397_827),
    "ffhq vp": ({**SONG, "img_resolution": 64, "model_channels": 128, "num_blocks": 4,
                 "channel_mult": [1, 2, 2, 2], "attn_resolutions": [16]}, 61_805_571),
    "imagenet": ({"img_resolution": 64, "label_dim": 1000, "model_type": "DhariwalUNet"},
                 295_899_267),
}  # fmt: skip


def on_meta(build: Any) -> Any:
    with torch.device("meta"):
        return build()


def size_of(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


@pytest.mark.parametrize("name", FULL)
def test_parameters_of_full_edm_networks(name: str) -> None:
    words, count = FULL[name]
    assert size_of(on_meta(lambda: Preconditioned(EDMConfig.read(words)))) == count


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_full_openai_networks(name: str) -> None:
    assert size_of(on_meta(lambda: OpenAIUNet(PUBLISHED[name].unet))) == PARAMETERS[name]


@needs_fixtures
@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_full_layouts(path: Path) -> None:
    """Every name and shape of the real files, in their order, and the number of parameters."""
    told = json.loads(path.read_text())
    if "flags" in told:
        config = PUBLISHED[FILES[path.stem]]
        assert config.size == told["flags"]["image_size"]
        assert config.steps == told["flags"]["diffusion_steps"]
        assert config.betas == told["flags"]["noise_schedule"]
        assert config.rescaled == told["flags"]["rescale_timesteps"]
        network = on_meta(lambda: OpenAIUNet(config.unet))
    else:
        words = {**told["config"], "precond": told["precond"]}
        network = on_meta(lambda: Preconditioned(EDMConfig.read(words)))
    shapes = [[name, list(value.shape)] for name, value in network.state_dict().items()]
    assert shapes == [row[:2] for row in told["state"]]
    assert size_of(network) == told["parameters"]


# Time


@pytest.mark.parametrize("case", EDM_CASES)
def test_gradients_in_time_by_finite_differences(case: str) -> None:
    """For all preconditioners; iDDPM's in the interpolated form."""
    network = edm_network(case).double()
    _, words, _, labels, _ = EDM_CASES[case]
    x = image("x", (1, 3, words["img_resolution"], words["img_resolution"]))
    label = one_hot(labels[:1], words["label_dim"])
    for level in (0.03, 0.7, 20.0):
        sigma = torch.tensor([level], dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(network(x * level, sigma, label).sum(), sigma)
        step = 1e-5 * level
        ends = [float(network(x * level, sigma.detach() + s, label).sum()) for s in (step, -step)]
        assert float(slope) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-6)


def test_times_of_iddpm_between_the_entries_of_its_table() -> None:
    network = edm_network("iddpm_adm").double()
    u = network.u.double()
    assert u[0] == pytest.approx(20291.17, rel=1e-4) and u[999] == pytest.approx(0.006422, rel=1e-3)
    entries = torch.tensor([0, 1, 500, 998, 999])
    assert torch.allclose(network.net_time(u[entries]), 999.0 - entries.double(), atol=1e-9)
    assert torch.equal(network.net_time(u[entries], rounded=True), 999.0 - entries.double())
    between = network.net_time((u[500] * u[501]).sqrt()[None])
    assert float(between) == pytest.approx(498.5)


@pytest.mark.parametrize("case", OPENAI_CASES)
def test_gradients_in_time_of_openai_networks(case: str) -> None:
    config, _, labels, _ = OPENAI_CASES[case]
    network = frozen(OpenAIUNet(config)).double()
    x, label = image("x", (1, 3, 8, 8)), torch.tensor(labels[:1]) if labels else None
    time = torch.tensor([123.4], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(network(x, time, label).sum(), time)
    ends = [float(network(x, time.detach() + s, label).sum()) for s in (1e-4, -1e-4)]
    assert float(slope) == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5)


@needs_fixtures
def test_tables_of_noise_and_ddim_with_and_without_the_clamp(tmp_path: Path) -> None:
    """Five steps of improved-diffusion's sampler, with 4000 trained steps and times x 0.25."""
    data = load_file(FIXTURES / "improved_ddim.safetensors")
    for schedule, name in (
        (OpenAIConfig(_BASE, 16, 4000, "cosine").schedule, "cosine4000"),
        (OpenAIConfig(_BASE, 16, 1000, "cosine").schedule, "cosine1000"),
        (OpenAIConfig(_BASE, 16, 1000, "linear").schedule, "linear1000"),
    ):
        logs = torch.tensor(schedule.log_alphas, dtype=torch.float64)
        table = data[f"alphas_cumprod_{name}"][: len(logs)]
        assert torch.allclose((2 * logs).exp(), table, rtol=1e-10)
    state = openai_state_of(_BASE)
    for name in ("out.2.weight", "out.2.bias"):
        state[name] = 0.25 * state[name]
    file = write(tmp_path / "a.pt", saved(state))
    flags = tmp_path / "flags.json"
    flags.write_text(json.dumps({**FLAGS, "image_size": 16}))
    times = (data["timestep_map"].double().flip(0) + 1) / 4000
    for clamp, name in ((True, "ddim5_clip"), (False, "ddim5_noclip")):
        options = PipelineOptions(config=str(flags), clamp=clamp)
        model = load_checkpoint(file, options=options)
        told: list[float] = []
        network = (model.model if clamp else model).network
        network.register_forward_pre_hook(lambda _, args, told=told: told.append(args[1][0]))
        denoise = ld3.bind(model)
        knots = ld3.knots(model.schedule, ld3.TimeGrid(times, times))
        x = ld3.integrate(denoise, ld3.make_solver("euler"), knots, data["x"])
        assert apart(denoise(x, times[-1]), data[name]) < 1e-5
        assert told == pytest.approx(data["net_times_in_order"].tolist())


def openai_state_of(config: UNetConfig) -> dict[str, Tensor]:
    return state_of(OpenAIUNet(config))


# Files as models


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, PipelineOptions]]:
    folder = tmp_path_factory.mktemp("files")
    (folder / "flags.json").write_text(json.dumps(FLAGS))
    flags = PipelineOptions(config=str(folder / "flags.json"))
    plain = PipelineOptions()
    return {
        "song": (write(folder / "song.pkl", edm_pickle(SONG)), plain),
        "ncsn": (write(folder / "ncsn.pkl", edm_pickle(NCSN)), plain),
        "adm": (write(folder / "adm.pkl", edm_pickle(ADM)), plain),
        "vp": (write(folder / "vp.pkl", edm_pickle(SONG, "VPPrecond")), plain),
        "ve": (write(folder / "ve.pkl", edm_pickle(NCSN, "VEPrecond")), plain),
        "iddpm": (write(folder / "iddpm.pkl", edm_pickle(ADM, "iDDPMPrecond")), plain),
        "openai": (write(folder / "openai.pt", saved(openai_state())), flags),
        "legacy": (write(folder / "legacy.pt", saved(openai_state(), zipped=False)), flags),
    }


KINDS = ("song", "ncsn", "adm", "vp", "ve", "iddpm", "openai", "legacy")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_a_model(kind: str, files: dict[str, tuple[Path, PipelineOptions]]) -> None:
    path, options = files[kind]
    model = load_checkpoint(path, options=options)
    assert isinstance(model, CheckpointModel)
    ld3.check_model(model)
    labels = model.conditions([0, 1, 7])
    if kind in ("adm", "iddpm"):
        assert isinstance(labels, Tensor) and labels.tolist() == [0, 1, 2]
        with pytest.raises(ModelError, match="guidance"):
            model.null(labels)
    else:
        assert labels is None
    x = ld3.prior(model, [0])
    t = torch.tensor(0.5 * model.schedule.t_max, dtype=torch.float64)
    with torch.no_grad():
        whole = ld3.bind(model, model.conditions([0]))(x, t)
        for dtype, near in ((torch.float64, 1e-4), (torch.bfloat16, 0.2), (torch.float16, 0.05)):
            other = load_checkpoint(path, dtype=dtype, options=options)
            out = ld3.bind(other, other.conditions([0]))(x, t)
            assert out.dtype == torch.float32 and apart(out, whole) < near
            assert other.digest == model.digest and other.identity != model.identity


@pytest.mark.parametrize("kind", KINDS)
def test_inspect_and_convert(
    kind: str, files: dict[str, tuple[Path, PipelineOptions]], tmp_path: Path
) -> None:
    path, options = files[kind]
    out = convert_checkpoint(path, tmp_path / "out.safetensors", options)
    before, after = inspect_checkpoint(path, options), inspect_checkpoint(out)
    for name in ("network", "parameters", "shape", "schedule", "prediction", "conditions"):
        assert before[name] == after[name]
    assert not after["left_as_names"]
    one, two = load_checkpoint(path, options=options), load_checkpoint(out)
    assert (one.digest, one.identity) == (two.digest, two.identity)
    assert load_file(out).keys() == dict(one.network.state_dict()).keys()  # plain safetensors


def test_the_converted_file_says_what_it_is_in_words(
    files: dict[str, tuple[Path, PipelineOptions]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["inspect", str(files["iddpm"][0])])
    printed = " ".join(capsys.readouterr().out.split())  # lines are wrapped
    assert stop.value.code == 0
    for words in ("ADM (DhariwalUNet, iDDPMPrecond)", "classes 0-4", "CC BY-NC-SA", "log sigma"):
        assert words in printed


@pytest.mark.parametrize(
    "words",
    [
        {"channel_mult": 2},
        {"channel_mult": [1, 10**9]},
        {"channel_mult": [1, "2"]},
        {"channel_mult": []},
        {"num_blocks": 10**6},
        {"model_channels": 1.5},
        {"resample_filter": [0, 0]},
        {"resample_filter": [1, [1]]},
        {"attn_resolutions": "16"},
        {"sigma_data": "x"},
        {"sigma_data": 0},
        {"img_resolution": True},
        {"precond": "Other"},
        {"embedding_type": ["positional"]},
    ],
    ids=str,
)
def test_configurations_no_network_is_built_from(words: dict[str, Any]) -> None:
    (name,) = words
    with pytest.raises(ModelError, match=name) as error:
        EDMConfig.read({**SONG, **words})
    assert "\n" not in str(error.value)


def test_a_network_without_memory_loads_no_compiler() -> None:
    """Some operations without memory import all of torch's compiler, for seconds."""
    code = (
        "import sys, torch\n"
        "from ld3.zoo.checkpoints.edm import EDMConfig, Preconditioned\n"
        "from ld3.zoo.checkpoints.openai_unet import OpenAIUNet, UNetConfig\n"
        "with torch.device('meta'):\n"
        "    Preconditioned(EDMConfig(8, embedding_type='fourier', resample_filter=(1, 3, 3, 1)))\n"
        "    OpenAIUNet(UNetConfig(32, (1, 2), 1, (2,)))\n"
        "assert 'sympy' not in sys.modules and 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_arguments_that_only_the_inner_network_has(tmp_path: Path) -> None:
    """An outer object that was pickled without its arguments."""
    content = edm_pickle({**SONG, "use_fp16": True})
    found = read_checkpoint(write(tmp_path / "a.pkl", content))
    config = {"precond": "EDMPrecond", "use_fp16": True, "model": found.config}
    told = describe(replace(found, config=config), PipelineOptions())
    assert told.shape == (3, 8, 8) and "--dtype float16" in told.notes[0]


def test_recognised_from_the_shapes_alone(tmp_path: Path) -> None:
    """EDM networks in safetensors of someone else; all but the preconditioner is in the shapes."""
    for words in (SONG, NCSN, ADM, {**SONG, "label_dim": 3, "num_blocks": 2}):
        network = Preconditioned(EDMConfig.read(words))
        path = write(tmp_path / "a.pt", saved(state_of(network)))
        with pytest.raises(ModelError, match="say --config"):
            load_checkpoint(path)
        model = load_checkpoint(path, options=PipelineOptions(config="EDMPrecond"))
        assert model.network.config == EDMConfig.read(words)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_openai_files_are_recognised_from_their_shapes(name: str, tmp_path: Path) -> None:
    """By structure alone, without reading: a sparse file of the full size."""
    network = on_meta(lambda: OpenAIUNet(PUBLISHED[name].unet))
    header, place = {}, 0
    for key, value in network.state_dict().items():
        size = 4 * value.numel()
        header[key] = {
            "dtype": "F32", "shape": list(value.shape), "data_offsets": [place, place + size]
        }  # fmt: skip
        place += size
    text = json.dumps(header).encode()
    with (tmp_path / "a.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + place)
    found = read_checkpoint(tmp_path / "a.safetensors")
    assert config_of(found, PipelineOptions()) == PUBLISHED[name]


def test_what_does_not_fit_is_said_in_one_line(tmp_path: Path) -> None:
    state = openai_state()
    flags = tmp_path / "flags.json"
    flags.write_text(json.dumps(FLAGS))
    options = PipelineOptions(config=str(flags))

    def said(values: dict[str, Tensor], options: PipelineOptions = options) -> str:
        path = write(tmp_path / "a.pt", saved(values))
        with pytest.raises((ModelError, SpecError)) as error:
            load_checkpoint(path, options=options)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "1 names too many (more)" in said({**state, "more": torch.ones(1)})
    fewer = {name: value for name, value in state.items() if name != "out.2.bias"}
    assert "1 names missing (out.2.bias)" in said(fewer)
    wrong = {**state, "out.0.weight": torch.ones(33)}
    assert "out.0.weight of shape [33], expected [32]" in said(wrong)
    whole = {**state, "out.0.weight": torch.ones(32, dtype=torch.int64)}
    assert "expected floating point" in said(whole)
    assert "--config FILE.json" in said(state, PipelineOptions())
    assert "did you mean 'cifar10_uncond'" in said(state, PipelineOptions(config="cifar10"))
    assert "names" in said(state, PipelineOptions(config="cifar10_uncond"))
    assert "--prompt: got" in said(state, PipelineOptions(prompts=("a",), config=str(flags)))
    assert "--label" in said(state, PipelineOptions(classes=(1,), config=str(flags)))
    for words, message in (
        ({"num_heads": 5}, "5 heads for 32 channels"),
        ({"image_size": "8"}, "image_size '8'"),
        ({"noise_schedule": "square"}, "linear or cosine"),
        ({"sizes": 8}, "unknown flag"),
        ({"predict_xstart": True}, "predict_xstart"),
    ):
        flags.write_text(json.dumps({**FLAGS, **words}))
        assert message in said(state)
    flags.write_text(json.dumps({"image_size": 8}))
    assert "got no diffusion_steps, noise_schedule, num_heads" in said(state)
    assert "makes no network" in said_of(
        tmp_path, edm_pickle(SONG).replace(b"model_channels\x94K\x08", b"model_channels\x94K\x09")
    )
    assert "unknown network" in said({"a.weight": weight("a", (2, 2))})
    with pytest.raises(ModelError, match="decoder_type"):
        EDMConfig.read({**SONG, "decoder_type": "skip"})
    nested = said_of(tmp_path, lightning({"a": torch.ones(1)}))
    assert "unknown network" in nested


def said_of(folder: Path, content: bytes) -> str:
    with pytest.raises(ModelError) as error:
        load_checkpoint(write(folder / "b.pkl", content))
    return str(error.value)


def test_labels_and_rounded_times(files: dict[str, tuple[Path, PipelineOptions]]) -> None:
    path = files["iddpm"][0]
    some = load_checkpoint(path, options=PipelineOptions(classes=(4, 2)))
    labels = some.conditions([0, 1, 2])
    assert isinstance(labels, Tensor) and labels.tolist() == [4, 2, 4]
    with pytest.raises(ModelError, match="labels from 0 to 4"):
        load_checkpoint(path, options=PipelineOptions(classes=(5,)))
    rounded = load_checkpoint(path, options=PipelineOptions(net_time="integer"))
    ld3.check_model(rounded)  # with the gradients of the time that is not rounded
    assert rounded.identity != load_checkpoint(path).identity
    with pytest.raises(ModelError, match="continuous"):
        load_checkpoint(files["song"][0], options=PipelineOptions(net_time="integer"))


def test_the_clamp_has_no_gradient_where_it_acts(
    files: dict[str, tuple[Path, PipelineOptions]],
) -> None:
    path, options = files["openai"]
    free = load_checkpoint(path, options=options)
    held = load_checkpoint(path, options=options.model_copy(update={"clamp": True}))
    assert (free.prediction, held.prediction) == ("eps", "x0")
    t = torch.tensor(0.5, dtype=torch.float64)
    x = ld3.prior(free, [0]).requires_grad_()
    plain, clamped = ld3.bind(free)(x, t), ld3.bind(held)(x, t)
    assert torch.allclose(plain.clamp(-1, 1), clamped, atol=1e-5)
    assert free.identity != held.identity and free.digest != held.digest


def test_load_model_by_a_file(files: dict[str, tuple[Path, PipelineOptions]]) -> None:
    path, options = files["openai"]
    loaded = load_model(str(path), options=options)
    assert loaded.options == options and isinstance(loaded.model.schedule, Discrete)
    assert loaded.model.schedule.steps == 4000 and loaded.conditions == ""
    assert load_model(str(files["adm"][0])).conditions == "classes 0-4"
    with pytest.raises(ModelError, match="no file"):
        load_model("nothing.pkl")
    with pytest.raises(SpecError, match="unknown model"):
        load_model("nothing")
    wanted = "--prompt, --resolution: got an option that a file of EDM does not take, expected --co"
    idle = PipelineOptions(prompts=("a cat",), height=64, width=64)
    with pytest.raises(SpecError, match=f"^{wanted}"):
        load_model(str(files["song"][0]), options=idle)


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 0


@pytest.mark.parametrize("kind", ["song", "ncsn", "adm", "vp", "ve", "iddpm", "openai"])
def test_learn_sample_export_and_compare_by_the_command_line(
    kind: str,
    files: dict[str, tuple[Path, PipelineOptions]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, options = files[kind]
    more = ["--config", options.config, "--clamp"] if options.config else []
    run(
        "learn", "--model", str(path), *more, "--nfe", "2", "--solver", "dpmpp", "--pairs", "2",
        "--held-out", "2", "--teacher-steps", "4", "--reference-steps", "4", "--preset", "fast",
        "--recipe", "epochs=1", "--start", "logsnr", "--out", str(tmp_path / "runs"),
    )  # fmt: skip
    (plan,) = (tmp_path / "runs").glob("*/plan.json")
    assert plan.parent.name.startswith(f"{path.stem}-{path.suffix[1:]}-dpmpp3-nfe2-")
    run("sample", "--plan", str(plan), "--seeds", "0-1", "--out", str(tmp_path / "samples"))
    assert any((tmp_path / "samples").iterdir())
    stored = json.loads(plan.read_text())["model"]
    assert stored["name"] == str(path) and bool(stored.get("options")) == bool(more)
    for tool in ("kdiffusion", "text"):
        run("export", str(plan), "--to", tool, "--out", str(tmp_path / tool))
        assert any((tmp_path / tool).rglob("*"))
    run(
        "compare", "--model", str(path), *more, "--methods", "edm,ld3", "--nfe", "2",
        "--pairs", "2", "--valid", "2", "--held-out", "2", "--teacher-steps", "4",
        "--reference-steps", "4", "--preset", "fast", "--recipe", "epochs=1", "--start", "logsnr",
        "--out", str(tmp_path / "compared"),
    )  # fmt: skip
    (compared,) = (tmp_path / "compared").rglob("compare.json")
    (block,) = json.loads(compared.read_text())["blocks"]
    assert {row["method"] for row in block["rows"]} == {"edm", "ld3"}
    capsys.readouterr()


def test_hostile_files_by_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "mark"
    text = f"touch {mark}".encode()
    content = b"\x80\x02cos\nsystem\nX" + len(text).to_bytes(4, "little") + text + b"\x85R."
    path = write(tmp_path / "a.pkl", content)
    for words in (
        ["inspect", str(path)],
        ["convert", str(path), str(tmp_path / "out.safetensors")],
        ["learn", "--model", str(path), "--out", str(tmp_path / "runs")],
    ):
        with pytest.raises(SystemExit) as stop:
            main(words)
        said = capsys.readouterr().err
        assert stop.value.code == 2 and said.count("\n") == 1 and "os.system" in said
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.pkl"] and not mark.exists()


def test_convert_refuses_bad_names(
    files: dict[str, tuple[Path, PipelineOptions]], tmp_path: Path
) -> None:
    path = files["song"][0]
    for out, message in ((path, "is the file to convert"), (tmp_path / "a.bin", ".safetensors")):
        with pytest.raises(SpecError, match=message):
            convert_checkpoint(path, out)
    assert math.isfinite(path.stat().st_size) and not list(tmp_path.iterdir())
    assert UNET.heads(32) == 4
