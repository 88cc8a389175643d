"""A machine of a Ray cluster is killed in the middle of a comparison: the result is the same.

    python tools/ray_nodes.py [--page docs/results/ray.md]

Starts a real Ray with two nodes on 127.0.0.1, one CPU each, and runs `ld3 compare --engine ray` on
it. In a second run the node without the head is killed while it works on a cell. Compares both with
the local pool: `compare.json` must be equal but for seconds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

MODEL = """
import os, time
from pathlib import Path
import ld3
from ld3.zoo.toy import mixture

TOY = mixture([[-0.6, 0.2], [0.5, -0.4]], 0.2)

def forward(x, t, cond):
    if "RAY_NODE" in os.environ:  # in a worker: say so, and take some time
        Path(os.environ["RAY_NODE"]).touch()
        time.sleep(0.01)
    return TOY.forward(x, t, None)

def make():
    return ld3.FunctionModel(forward, TOY.schedule, "x0", (2,))
"""
WORDS = (
    "compare", "--model", "small:make", "--methods", "edm,gits,ld3-times,ld3", "--nfe", "3,4",
    "--seeds", "2", "--pairs", "16", "--valid", "8", "--held-out", "8", "--batch", "8",
    "--preset", "fast", "--recipe", "epochs=2",
)  # fmt: skip
TIMED = ("seconds", "sha256", "out", "jobs")


def compare(
    out: Path, *options: str, environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """A comparison that runs."""
    return subprocess.Popen(
        [sys.executable, "-m", "ld3", *WORDS, "--out", str(out), *options], text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip


def finished(run: subprocess.Popen[str], out: Path) -> object:
    """Its result without seconds."""
    _, said = run.communicate()
    if run.returncode:
        sys.exit(f"compare: code {run.returncode}: {said}")
    return _untimed(json.loads((out / "compare.json").read_text()))


def _untimed(value: object) -> object:
    if isinstance(value, dict):
        return {name: _untimed(inner) for name, inner in value.items() if name not in TIMED}
    return [_untimed(inner) for inner in value] if isinstance(value, list) else value


def cluster(folder: Path) -> tuple[Cluster, object]:
    """A Ray with two nodes of one CPU, and the second of them."""
    made = Cluster()
    nodes = [
        made.add_node(num_cpus=1, env_vars={**os.environ, "RAY_NODE": str(folder / f"node-{n}")})
        for n in range(2)
    ]
    return made, nodes[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="write the table to this file, too")
    args = parser.parse_args()
    page = None if args.page is None else args.page.absolute()
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        Path("small.py").write_text(MODEL)
        local = finished(compare(Path("local")), Path("local"))
        for killed in (False, True):
            made, node = cluster(folder)
            beats = [folder / f"node-{n}" for n in range(2)]
            out = Path("killed" if killed else "ray")
            run = compare(
                out, "--engine", "ray",
                environment={**os.environ, "RAY_ADDRESS": made.address},
            )  # fmt: skip
            while killed and not beats[1].exists() and run.poll() is None:
                time.sleep(0.05)
            if killed:
                time.sleep(0.3)
                made.remove_node(node, allow_graceful=False)
            same = finished(run, out) == local
            both = all(beat.exists() for beat in beats)
            made.shutdown()
            for beat in beats:
                beat.unlink(missing_ok=True)
            tried = "one of two nodes killed while it worked" if killed else "two nodes"
            rows.append((tried, "both" if both else "one", "equal" if same else "different"))
            print("  ".join(rows[-1]), flush=True)
        os.chdir("/")
    if page is not None:
        head = ("Ray on 127.0.0.1", "nodes that worked", "compare.json but for seconds")
        lines = [f"| {' | '.join(row)} |" for row in (head, ("---",) * 3, *rows)]
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(
            f"Made by `python tools/ray_nodes.py`, Ray {ray.__version__}.\n\n"
            + "\n".join(lines)
            + "\n"
        )
    sys.exit(any(row[1:] != ("both", "equal") for row in rows))


if __name__ == "__main__":
    main()
