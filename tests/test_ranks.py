"""Ranks: work in fixed pieces, shared by any number of processes with the same result."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ld3
from ld3.errors import SpecError
from ld3.learner.presets import make_preset
from ld3.learner.recipes import change_recipe
from ld3.runs.cache import CHUNK, Cache
from ld3.runs.ranks import ALONE, Ranks, device_of, joined, rank_of_environment
from ld3.runs.run import recipe_facts
from ld3.share import Tensors, alone
from learning_toys import mixture_problem

TOOL = Path(__file__).parent.parent / "tools" / "ranks.py"


def test_one_two_and_three_ranks_and_a_killed_one_leave_the_same_bytes() -> None:
    """Plans, states, pairs, scores, features, set metrics and samples; ranks that fail all end."""
    made = subprocess.run(
        [sys.executable, str(TOOL), "--quick"], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=900,
    )  # fmt: skip
    rows = [line.split("  ") for line in made.stdout.splitlines()]
    names = [row[0] for row in rows[:4]]
    assert names == ["`learn`", "`compare`", "`evaluate`", "`sample`"], made.stderr
    assert len(rows) == 8 and all(row[-1] == "0" for row in rows), made.stdout
    assert made.returncode == 0


def test_torchrun_starts_them(tmp_path: Path) -> None:
    """As users do; rank 0 alone speaks and writes."""
    words = [
        "--model", "toys:make", "--nfe", "3", "--pairs", "8", "--valid", "8", "--held-out", "8",
        "--batch", "3", "--preset", "fast", "--recipe", "epochs=1", "--device", "auto",
    ]  # fmt: skip
    (tmp_path / "toys.py").write_text(
        "from ld3.zoo.toy import mixture\ndef make(): return mixture([[-0.6, 0.2], [0.5, 0]], 0.2)"
    )
    run = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ld3"]
    made = subprocess.run(
        [sys.executable, "-m", *run, "learn", *words], cwd=tmp_path, capture_output=True,
        text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("The plan's distance") == 1
    (plan,) = (tmp_path / "runs").glob("*/plan.json")
    assert json.loads(plan.read_text())["learned"]["spec"]["device"] == "cpu"


FAILS = """
from ld3.errors import Ld3Error
from ld3.runs.ranks import joined
try:
    with joined():
        raise Ld3Error("wrong")
except Ld3Error as error:
    print(f"said {error}", flush=True)
"""


def test_a_launcher_that_ends_all_ranks_at_the_first_does_not_lose_the_line() -> None:
    """Rank 0, which says it, gets SIGTERM once rank 1 has ended, as torchrun sends it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in ("0", "1"):
        own = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", FAILS], stdout=subprocess.PIPE, text=True,
                env={**os.environ, **own, "OMP_NUM_THREADS": "1"},
            )
        )  # fmt: skip
    first, second = ranks
    assert second.stdout is not None and second.stdout.readline() == "said wrong\n"
    first.send_signal(signal.SIGTERM)
    assert first.communicate(timeout=60)[0] == "said wrong\n" and first.returncode == 0
    second.communicate(timeout=60)


SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for ((n = 0; n < SLURM_NTASKS; n++)); do
  SLURM_PROCID=$n SLURM_LOCALID=$n "$@" & tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || exit 1; done
"""


def test_the_slurm_script_of_the_docs(tmp_path: Path) -> None:
    """As it is in docs/scale.md, with an `srun` that sets what Slurm's sets, for two tasks."""
    page = (Path(__file__).parent.parent / "docs" / "scale.md").read_text()
    script = page[page.index("#!/bin/bash") :].split("```")[0]
    assert "MASTER_PORT=29500" in script and "--model my.module:network" in script
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        script = script.replace("29500", str(free.getsockname()[1]))
    words = "--nfe 3 --pairs 8 --valid 8 --held-out 8 --batch 3 --preset fast --recipe epochs=1"
    (tmp_path / "job.sh").write_text(script.replace("--device auto", f"--device auto {words}"))
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "module.py").write_text(
        "import os, pathlib\nfrom ld3.zoo.toy import mixture\ndef network():\n"
        "    pathlib.Path('rank-' + os.environ['RANK']).touch()\n"
        "    return mixture([[-0.6, 0.2], [0.5, 0]], 0.2)\n"
    )
    tools = {
        "srun": SRUN,
        "scontrol": "#!/bin/bash\nprintf '127.0.0.1\\nother\\n'\n",
        "python": f'#!/bin/bash\nexec {sys.executable} "$@"\n',
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
    made = subprocess.run(
        ["bash", "job.sh"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, **slurm, "OMP_NUM_THREADS": "1",
             "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("The plan's distance") == 1
    assert {file.name for file in tmp_path.glob("rank-*")} == {"rank-0", "rank-1"}
    assert len(list((tmp_path / "runs").glob("*/plan.json"))) == 1


def test_alone_nothing_is_started() -> None:
    assert not torch.distributed.is_initialized()
    with joined() as ranks:
        assert ranks is ALONE and not torch.distributed.is_initialized()
    seen: list[int] = []

    def make(item: int) -> Tensors:
        seen.append(item)
        return {"square": torch.tensor(item**2)}

    for share in (alone, ALONE.share):
        found = share(make, [3, 1, 2])
        assert int(next(iter(found))["square"]) == 9 and seen == [3]  # one at a time
        assert [int(one["square"]) for one in found] == [1, 4]
        seen.clear()
    assert ALONE.first(lambda: {"a": (1,)}) == {"a": (1,)}
    assert ALONE.first_tensors(lambda: None) is None


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, "no number"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "expected 0 to 1"),
    ],
)
def test_a_wrong_environment_is_said(environment: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        rank_of_environment(environment)


def test_the_environment_of_torchrun() -> None:
    assert rank_of_environment({}) == (0, 1, 0)
    found = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}
    assert rank_of_environment(found) == (9, 16, 1)


def test_ranks_that_cannot_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(SpecError, match=r"MASTER_ADDR.*torchrun"), joined():
        pass


def test_auto_is_a_device_that_is_there() -> None:
    assert device_of("cuda:1") == "cuda:1"
    torch.empty(0, device=device_of("auto"))
    assert ld3.RunSpec(device="auto").device == device_of("auto")


def test_only_the_first_rank_has_a_folder(tmp_path: Path) -> None:
    assert Cache.open(tmp_path, ranks=Ranks(0, 2)).folder == tmp_path
    assert Cache.open(tmp_path, ranks=Ranks(1, 2)).folder is None


def test_chunks_are_made_one_by_one(tmp_path: Path) -> None:
    """What was made before an error is there afterwards."""

    def make(seeds: object) -> torch.Tensor:
        assert isinstance(seeds, list)
        if CHUNK in seeds:
            raise SpecError("enough")
        return torch.tensor(seeds)[:, None]

    cache, done = Cache(tmp_path), []
    with pytest.raises(SpecError, match="enough"):
        cache.rows("pairs", {}, range(2 * CHUNK), make, done.append)
    assert done == [0, CHUNK] and len(list(tmp_path.rglob("*.safetensors"))) == 1


def test_parts_of_a_batch_give_its_slope() -> None:
    """The parts change the last bits of a plan and nothing else; the whole batch changes none."""
    recipe = change_recipe(make_preset("fast", 4).recipe, {"epochs": 2})
    ends = {}
    for part in (8, 100, 3, 1):
        steps = list(ld3.learning(mixture_problem(), change_recipe(recipe, {"part": part}), seed=1))
        ends[part] = steps[-1]
        assert ends[part].state.evaluations == ends[8].state.evaluations
    times = {part: end.tuned.grid.times for part, end in ends.items()}
    assert torch.equal(times[8], times[100])
    for part in (3, 1):
        assert not torch.equal(times[8], times[part])
        assert torch.allclose(times[8], times[part], rtol=1e-3)


def test_a_part_that_splits_is_in_the_name_of_a_run() -> None:
    recipe = make_preset("standard", 4).recipe
    assert "part" not in recipe_facts(recipe)
    assert recipe_facts(change_recipe(recipe, {"part": 4}))["part"] == 4
