"""A plan zoo: a folder or repository of plans with an index.

index.json     format, and for each plan its file, SHA-256, model, NFE, guidance, solver and scores
README.md      the card: a table, how to use a plan, the images
plan.json      in folders anywhere below; `samples.png` and `report.html` beside one are linked
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ld3.errors import Ld3Error, PlanError, SpecError, StoreError, unknown
from ld3.export.diffusers import lines as diffusers_lines
from ld3.export.hub import distances, guidance
from ld3.export.numbers import clean, slug, solver_name
from ld3.export.zoo_files import ZooFiles, safe
from ld3.plan import Plan, Text
from ld3.report.tables import significant
from ld3.store import read_json, write_bytes, write_json

INDEX = "index.json"
FORMAT: Literal["ld3-zoo-1"] = "ld3-zoo-1"


class Entry(BaseModel):
    """One plan file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Text  # to ask for it
    file: Text
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    model: Text
    digest: Text  # of the weights
    prediction: Text
    schedule: Text
    solver: Text
    nfe: Annotated[list[int], Field(min_length=1, max_length=200)]
    guidance: Text
    scores: dict[Text, float] = {}  # distance on held-out seeds at the plan's own NFE, best first
    report: Text = ""
    image: Text = ""


class Index(BaseModel):
    """All plans of a zoo."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal["ld3-zoo-1"] = FORMAT
    plans: Annotated[list[Entry], Field(max_length=10_000)]


@dataclass(frozen=True)
class Zoo:
    """An index and its files."""

    files: ZooFiles
    index: Index
    note: str = ""  # if the index is an older copy

    @classmethod
    def open(cls, where: str, copies: Path | None = None) -> "Zoo":
        files = ZooFiles.at(where, copies)
        try:
            content, note = files.read(INDEX)
            index = Index.model_validate(json.loads(content))
        except (ValidationError, ValueError, RecursionError) as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else {"msg": str(error)}
            place = ".".join(map(str, first.get("loc", ())))
            raise StoreError(
                f"{where}/{INDEX}: {f'{place}: ' if place else ''}{first['msg']}; "
                "`ld3 zoo index` makes it anew"
            ) from None
        return cls(files, index, note)

    def entry(self, name: str) -> Entry:
        for entry in self.index.plans:
            if name in (entry.name, entry.file):
                return entry
        raise unknown("plan", name, [entry.name for entry in self.index.plans])

    def plan(self, entry: Entry) -> tuple[Plan, bytes]:
        """The plan and its file, proved by the SHA-256 in the index."""
        content, _ = self.files.read(entry.file, entry.sha256)
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise StoreError(
                f"{entry.file}: is not the file of the index, its SHA-256 is another; "
                "`ld3 zoo index` makes the index anew"
            )
        return _plan_of(content, entry.file), content

    def faults(self) -> Iterator[tuple[str, str]]:
        """(file, what is wrong with it or nothing), for every plan."""
        for entry in self.index.plans:
            try:
                plan, content = self.plan(entry)
            except Ld3Error as error:
                yield entry.file, str(error).removeprefix(f"{entry.file}: ")
                continue
            own = entry_of(plan, content, entry.file, entry.name, entry.report, entry.image)
            wrong = [key for key, value in own.model_dump().items() if value != getattr(entry, key)]
            yield entry.file, f"the index says otherwise of {', '.join(wrong)}" if wrong else ""


def _plan_of(content: bytes, name: str) -> Plan:
    try:
        return Plan.checked(json.loads(content), name)
    except (ValueError, RecursionError):
        raise PlanError(f"{name}: got something that is not JSON, expected a plan") from None


def entry_of(
    plan: Plan, content: bytes, file: str, name: str, report: str = "", image: str = ""
) -> Entry:
    """What the index says of a plan."""
    return Entry(
        name=name,
        file=file,
        sha256=hashlib.sha256(content).hexdigest(),
        model=plan.model.name,
        digest=plan.model.digest,
        prediction=plan.model.prediction,
        schedule=type(plan.noise_schedule).__name__,
        solver=solver_name(plan),
        nfe=plan.counts,
        guidance=guidance(plan),
        scores=dict(distances(plan)[:3]),
        report=report,
        image=image,
    )


def index_zoo(folder: Path, title: str | None = None) -> Index:
    """Write index.json and README.md for all plan files below a folder."""
    if not folder.is_dir():
        raise SpecError(f"zoo: got {folder}, expected a folder with plans")
    entries, plans = [], []
    for path in sorted(folder.rglob("*.json")):
        if not _is_plan(path):
            continue
        file = safe(path.relative_to(folder).as_posix())
        content = path.read_bytes()
        plan = _plan_of(content, file)
        parts = [*path.relative_to(folder).parts[:-1], *([path.stem] * (path.stem != "plan"))]
        name = "-".join(parts) or slug(plan.model.name)
        beside = {
            key: path.with_name(found).relative_to(folder).as_posix()
            for key, found in (("report", "report.html"), ("image", "samples.png"))
            if path.with_name(found).is_file()
        }
        entries.append(entry_of(plan, content, file, name, **beside))
        plans.append(plan)
    if not entries:
        raise SpecError(f"zoo: got no plan below {folder}, expected plan.json files of `ld3 learn`")
    names = [entry.name for entry in entries]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SpecError(f"zoo: got two plans called {sorted(twice)}, expected one; rename a file")
    index = Index(plans=entries)
    write_json(folder / INDEX, index.model_dump())
    text = "\n".join(card(index, plans, title or folder.resolve().name))
    write_bytes(folder / "README.md", f"{text}\n".encode())
    return index


def _is_plan(path: Path) -> bool:
    """Whether a JSON file says that it is a plan; a broken plan is not passed over."""
    if path.name == "plan.json":
        return True
    try:
        content = read_json(path)
    except StoreError:
        return False
    return isinstance(content, dict) and str(content.get("format", "")).startswith("ld3-plan")


def card(index: Index, plans: Sequence[Plan], title: str) -> Iterator[str]:
    """README.md."""
    yield f"# {clean(title)}"
    yield ""
    yield f"{len(index.plans)} sampling plans. Each is for one model, guidance and solver."
    yield ""
    yield "| plan | model | NFE | guidance | solver | distance | best known grid | report |"
    yield "|---|---|---|---|---|---|---|---|"
    for entry in index.plans:
        own, known = _best(entry)
        report = f"[report]({entry.report})" if entry.report else ""
        nfe = ", ".join(map(str, entry.nfe))
        yield (
            f"| {entry.name} | {clean(entry.model)} | {nfe} | {entry.guidance} | {entry.solver} | "
            f"{own} | {known} | {report} |"
        )
    yield ""
    yield "Distances are to the model's own accurate samples on held-out seeds; lower is better."
    yield ""
    yield "## Use"
    yield ""
    yield "```bash"
    yield "pip install 'ld3[diffusers]'"
    yield "ld3 zoo get ADDRESS NAME"
    yield "```"
    yield ""
    yield (
        "`from_config` compares the noise schedule and the prediction of the pipeline with the "
        "plan's, and refuses a plan for another model. The lines below `without ld3` need "
        "diffusers alone."
    )
    for entry, plan in zip(index.plans, plans, strict=True):
        yield ""
        yield f"## {entry.name}"
        yield ""
        if entry.image:
            yield f"![samples of {entry.name}]({entry.image})"
            yield ""
        yield "```python"
        got = f'"{entry.name}.json"'  # where `ld3 zoo get` writes it
        yield from (line.replace('"plan.json"', got) for line in diffusers_lines(plan))
        yield "```"


def _best(entry: Entry) -> tuple[str, str]:
    """The plan's own distance, and that of the best grid that was not learned."""
    own = [significant(value) for name, value in entry.scores.items() if name in OWN]
    known = [f"{clean(n)} {significant(v)}" for n, v in entry.scores.items() if n not in OWN]
    return (own or ["none"])[0], (known or ["none"])[0]


OWN = ("learned", "family", "refined")
