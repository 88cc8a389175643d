"""Ray: cells of a comparison as tasks of a cluster, with the result of the local pool."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import ld3
from ld3.errors import SpecError
from ld3.runs.engines import check_alone, make_engine
from ld3.runs.ranks import ALONE, Ranks
from ld3.runs.ray_cluster import RayCluster

WORDS = [
    "compare", "--model", "small:make", "--methods", "edm,gits,ld3-times", "--nfe", "3",
    "--pairs", "8", "--valid", "8", "--held-out", "8", "--preset", "fast", "--recipe", "epochs=1",
]  # fmt: skip


def test_engines_by_name() -> None:
    assert make_engine("local") is None
    assert make_engine("local", jobs=2) is not None
    assert make_engine("ray", gpus=0.5) == RayCluster(0.5)
    with pytest.raises(SpecError, match="--engine ray"):
        ld3.CompareSpec(gpus_per_cell=1.0)


def test_ranks_and_engines_are_not_mixed() -> None:
    check_alone(make_engine("local", jobs=2), ALONE)
    check_alone(None, Ranks(0, 2))
    with pytest.raises(SpecError, match="give one of them"):
        check_alone(make_engine("local", jobs=2), Ranks(0, 2))


def test_without_the_package_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpecError, match=r"pip install 'ld3\[ray\]'"):
        RayCluster()(print, ["item"], str, lambda *_: None)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with a model, and the address of a Ray with one CPU."""
    pytest.importorskip("ray", reason="pip install 'ld3[ray]'")
    folder = tmp_path_factory.mktemp("ray")
    (folder / "small.py").write_text(
        "from ld3.zoo.toy import mixture\ndef make(): return mixture([[-0.6, 0.2], [0.5, 0]], 0.2)"
    )
    code = (
        "from ray.cluster_utils import Cluster\n"
        "cluster = Cluster(initialize_head=True, head_node_args={'num_cpus': 1})\n"
        "print(cluster.address, flush=True)\n"
        "input()\n"
        "cluster.shutdown()\n"
    )
    node = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], cwd=folder, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    assert node.stdout is not None
    address = node.stdout.readline().strip()
    assert address, "Ray did not start"
    yield folder, address
    node.communicate("\n", timeout=120)


def test_the_same_comparison_as_alone(cluster: tuple[Path, str]) -> None:
    """All cells are made by the cluster, and read here."""
    folder, address = cluster
    found = []
    for name, options in (("alone", []), ("ray", ["--engine", "ray"])):
        made = _run([*WORDS, "--out", name, *options], folder, address)
        assert made.returncode == 0, made.stderr
        found.append(_untimed(json.loads((folder / name / "compare.json").read_text())))
    assert found[0] == found[1]


def test_gpus_that_no_machine_has() -> None:
    """They would be waited for forever."""
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0}},
        {"Alive": True, "Resources": {"GPU": 2.0}},
        {"Alive": False, "Resources": {"GPU": 8.0}},
    ]
    cluster = SimpleNamespace(nodes=lambda: nodes)
    RayCluster(2.0).check(cluster)
    with pytest.raises(SpecError, match="largest machine of the cluster has 2 GPUs"):
        RayCluster(3.0).check(cluster)


def test_no_cluster_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ray: ModuleType = pytest.importorskip("ray", reason="pip install 'ld3[ray]'")

    def nothing(**_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", nothing)
    with pytest.raises(SpecError, match="ray start --head"):
        RayCluster()(print, ["item"], str, lambda *_: None)


def _run(words: list[str], folder: Path, address: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_ADDRESS": address}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "ld3", *words], cwd=folder, text=True,
        capture_output=True, env=environment, timeout=600, check=False,
    )  # fmt: skip


def _untimed(value: object) -> object:
    if isinstance(value, dict):
        skipped = ("seconds", "out", "jobs")
        return {name: _untimed(inner) for name, inner in value.items() if name not in skipped}
    return [_untimed(inner) for inner in value] if isinstance(value, list) else value
