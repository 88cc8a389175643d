"""Send mutated input to everything that reads some, and count what becomes of it.

    python tools/fuzz.py --cases 10000 --page docs/results/fuzz.md

Cases are numbers: `--first 512 --cases 1` runs one again. Ends that count as failures are printed.
The inputs and the rules are in tests/fuzzing.py.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.fuzzing import KINDS, LIMIT, WAIT, peak_memory, run_case  # noqa: E402

ENDS = ("answered", "refused", "crashed", "noisy", "hung")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--page", type=Path, help="write the counts as Markdown to this file")
    given = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for case in range(given.first, given.first + given.cases):
            found = run_case(case, Path(folder) / "case")
            counts[found.kind, found.end] += 1
            if not found.good:
                print(f"case {case}: {found.kind} {found.end}: {found.said}", flush=True)
            if case % 1000 == 999:
                print(f"{case + 1} cases", flush=True)
    lines = [
        f"`make fuzz`: {given.cases} cases, at most {LIMIT} s of processor time and {WAIT} s by "
        f"the clock each; peak memory of the process {peak_memory() / 2**20:.0f} MB.",
        "",
        f"| input | {' | '.join(ENDS)} |",
        f"|---|{'---|' * len(ENDS)}",
        *(f"| {k} | {' | '.join(str(counts[k, end]) for end in ENDS)} |" for k in KINDS),
    ]
    print("\n".join(lines))
    if given.page is not None:
        given.page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(any(counts[kind, end] for kind in KINDS for end in ENDS[2:]))


if __name__ == "__main__":
    sys.exit(main())
