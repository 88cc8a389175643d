"""Choose the length of the average of a long run, and write ``final.pt`` for ``export.py``.

    python training/finish.py fashion

Averages of several relative widths are made from the snapshots (``averages.py``), each is graded by
the Fréchet distance of its samples to the *training* images, the same seeds for all, so that the
test images have no part in the choice. The best is written, and graded once on the test images.
``road``, of which the package has no features, gets the average of width 0.1.

    python training/finish.py fashion --keep

also writes it to ``unfinished``, as float16: ``--go-on`` starts from there, on any machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import torch
from averages import combine
from learner import UNFINISHED, averaged
from long import save
from quality import grade
from safetensors.torch import save_file
from torch import Tensor, nn

SCRIPTS = {
    "fashion": "fashion", "fashion-flow": "flow", "fashion-latent": "latent", "road": "colour",
}  # fmt: skip
WIDTHS = (0.025, 0.035, 0.05, 0.07, 0.10, 0.14)


def last(log: Path) -> dict[str, Any]:
    """The last line of a log."""
    line: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
    return line


def model_of(name: str, weights: dict[str, Tensor], runs: Path) -> tuple[nn.Module, Any]:
    """The network with these weights, and the model around it."""
    script = importlib.import_module(SCRIPTS[name])
    net = averaged(script.build(), weights)
    if name != "fashion-latent":
        return net, script.as_model(net)
    return net, script.as_model(net, script.trained_coder(runs / "autoencoder"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("name", choices=sorted(SCRIPTS))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs")
    parser.add_argument("--until", type=int, help="snapshots up to this iteration")
    parser.add_argument("--widths", type=float, nargs="+", default=WIDTHS)
    parser.add_argument("--samples", type=int, default=2000, help="for the choice")
    parser.add_argument("--final-samples", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="for --go-on on another machine")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    run, best, graded = args.runs / args.name, 0.1, args.name != "road"
    if graded:
        tried: dict[float, dict[str, Any]] = {}
        for width in args.widths:
            weights = combine(run / "averages", width, args.until)
            _, model = model_of(args.name, weights, args.runs)
            tried[width] = grade(model, args.samples, part="train")
            print(width, tried[width], flush=True)
        best = min(tried, key=lambda width: tried[width]["frechet"])
    net, model = model_of(args.name, combine(run / "averages", best, args.until), args.runs)
    facts = grade(model, args.final_samples, first=50_000) if graded else {}
    print("chosen", best, facts)
    end = last(run / "log.jsonl")
    script = importlib.import_module(SCRIPTS[args.name])
    training = {
        "command": f"python training/{SCRIPTS[args.name]}.py",
        "iterations": end["iteration"],
        "batch": script.PACE.batch,
        "lr": script.PACE.lr,
        "seed": script.PACE.seed,
        "minutes": round(end["seconds"] / 60),
        "average": best,
    }
    about = {**script.ABOUT, "training": training, "test": facts}
    weights = {k: v.contiguous() for k, v in net.state_dict().items()}
    save(run / "final.pt", {"weights": weights, "about": json.dumps(about)})
    if args.keep:
        UNFINISHED.mkdir(exist_ok=True)
        short = {k: v.half() if v.is_floating_point() else v for k, v in weights.items()}
        save_file(short, UNFINISHED / f"{args.name}.safetensors", {"about": json.dumps(about)})


if __name__ == "__main__":
    main()
