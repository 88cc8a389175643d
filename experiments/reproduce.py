"""The paper's experiments on their small models, with the results put into the documentation.

    python experiments/reproduce.py [NAME ..] [--out DIR] [--jobs N]

writes docs/results/reproduce/NAME.md and docs/images/reproduce/NAME*.png; without names, of all
experiments, which takes hours. Ctrl-C stops; the same command goes on.
"""

import argparse
import shutil
from pathlib import Path

from cells import IMAGES, RESULTS, ROOT
from tqdm import tqdm

from ld3.reproduce import experiments, load_experiment, run_reproduce, write_result


def publish(files: list[Path], name: str) -> None:
    """The page and the pictures of a result."""
    for file in files:
        if file.suffix == ".md":
            target = RESULTS / "reproduce" / f"{name}.md"
        elif file.suffix == ".png":
            own = "" if file.stem == "result" else f"-{file.stem}"
            target = IMAGES / "reproduce" / f"{name}{own}.png"
        else:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        print(target.relative_to(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="experiments; none: all")
    parser.add_argument("--model", help="instead of an experiment's default")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "reproduce")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    args = parser.parse_args()
    for name in args.names or experiments():
        with tqdm(total=1, desc=name, leave=False) as bar:

            def tell(what: str, done: int, total: int, bar: tqdm = bar) -> None:
                bar.total, bar.n = total, done
                bar.set_postfix_str(what)

            experiment = load_experiment(name)
            result = run_reproduce(experiment, args.model, out=args.out, jobs=args.jobs, tell=tell)
        publish(list(write_result(result, args.out)), result.folder)


if __name__ == "__main__":
    main()
