"""`ld3 zoo`: folders and repositories of plans."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ld3.cli.options import json_option, option, print_table, together
from ld3.cli.say import say
from ld3.errors import PlanError

if TYPE_CHECKING:
    from ld3.export.plan_zoo import Zoo

FOLDER = click.Path(path_type=Path, file_okay=False)
place_options = together(
    click.argument("where", metavar="DIR_OR_URL"),
    option("--copies", type=FOLDER, help="Folder of copies of what an address gave.",
           shown="LD3_ZOO, or ld3/zoo in the user's cache"),
)  # fmt: skip


@click.group()
def zoo() -> None:
    """List, fetch and check plans of a zoo: a folder or an https address with an index.json."""


@zoo.command("list")
@place_options
@json_option
def list_plans(where: str, copies: Path | None, json_: bool) -> None:
    """List the plans of a zoo."""
    from ld3.report.tables import significant

    found = _open(where, copies)
    if json_:
        say(json.dumps([entry.model_dump() for entry in found.index.plans], indent=2))
        return
    head = ("plan", "model", "NFE", "guidance", "solver", "distances")
    rows = [
        (
            entry.name,
            entry.model,
            ",".join(map(str, entry.nfe)),
            entry.guidance,
            entry.solver,
            ", ".join(f"{name} {significant(value)}" for name, value in entry.scores.items())
            or "-",
        )
        for entry in found.index.plans
    ]
    print_table([head, *rows])


@zoo.command("get")
@place_options
@click.argument("name")
@option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File of the plan.",
        shown="NAME.json")  # fmt: skip
def get_plan(where: str, name: str, out: Path | None, copies: Path | None) -> None:
    """Fetch one plan, proved by its SHA-256 in the index."""
    from ld3.store import write_bytes

    found = _open(where, copies)
    entry = found.entry(name)
    plan, content = found.plan(entry)
    path = out or Path(f"{entry.name}.json")
    write_bytes(path, content)
    say(f"{plan.model.name}, {entry.solver}, NFE {','.join(map(str, entry.nfe))}")
    say(f"wrote  {path}")


@zoo.command("check")
@place_options
def check_plans(where: str, copies: Path | None) -> None:
    """Check every plan of a zoo, and what the index says of it. Exit code 2 if one is wrong."""
    from ld3.export.plan_zoo import Zoo

    found, wrong = Zoo.open(where, copies), []
    for file, fault in found.faults():
        say(f"{'wrong' if fault else 'fine ':5}  {file}{f': {fault}' if fault else ''}")
        wrong += [file] if fault else []
    if wrong:
        raise PlanError(f"zoo: {len(wrong)} of {len(found.index.plans)} plans are wrong, see above")


@zoo.command("index")
@click.argument("folder", type=FOLDER)
@option("--title", help="Heading of the card.", shown="the folder's name")
def make_index(folder: Path, title: str | None) -> None:
    """Write index.json and README.md for all plans below a folder."""
    from ld3.export.plan_zoo import INDEX, index_zoo

    index = index_zoo(folder, title)
    say(f"{len(index.plans)} plan{'s' * (len(index.plans) != 1)}")
    say(f"wrote  {folder / INDEX}")
    say(f"wrote  {folder / 'README.md'}")


def _open(where: str, copies: Path | None) -> "Zoo":
    from ld3.export.plan_zoo import Zoo

    found = Zoo.open(where, copies)
    if found.note:
        say(found.note, err=True)
    return found


COMMANDS = (zoo,)
