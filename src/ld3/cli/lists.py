"""`ld3 solvers`, `methods`, `schedules`, `models`: what can be named in options."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import click

from ld3.cli.options import json_option, print_lines, print_table
from ld3.cli.say import say

Entry = dict[str, Any]
Columns = dict[str, str | Callable[[Entry], str]]  # by heading: what it shows of an entry


@click.command()
@json_option
def solvers(json_: bool) -> None:
    """List the ODE solvers."""
    from ld3.solvers import SOLVERS

    entries = (
        {
            "name": name,
            "orders": list(kind.orders),
            "default_order": kind().order,
            "variants": list(filter(None, kind.variants)),
            "nfe_per_step": kind().nfe(1),
            "summary": kind.summary,
        }
        for name, kind in SOLVERS.items()
    )
    columns: Columns = {"solver": "name", "orders": _span, "variants": "variants"}
    _print(entries, json_, columns | {"summary": "summary"})


@click.command()
@json_option
def methods(json_: bool) -> None:
    """List the methods that choose the times: known grids, searches, learned."""
    from ld3.known_grids import METHODS
    from ld3.runs.compare.methods import LEARNED
    from ld3.runs.compare.spec import kind_of, needs_of, source_of
    from ld3.searches.registry import SEARCHES

    entries = (
        {
            "name": name,
            "kind": kind_of(name),
            "even_in": METHODS[name].variable if name in METHODS else None,
            "needs": needs_of(name),
            "source": source_of(name),
        }
        for name in (*METHODS, *SEARCHES, *LEARNED)
    )
    _print(entries, json_, {"method": "name", "kind": "kind", "what": _method})


@click.command()
@json_option
def schedules(json_: bool) -> None:
    """List the noise schedules."""
    from ld3.schedules import SCHEDULES, make_schedule

    made = ((name, make_schedule(name), summary) for name, (_, summary) in SCHEDULES.items())
    entries = (
        {"name": name, "t_min": s.t_min, "t_max": s.t_max, "summary": summary}
        for name, s, summary in made
    )
    times = "{t_min:g} to {t_max:g}".format_map
    _print(entries, json_, {"schedule": "name", "times": times, "summary": "summary"})


@click.command()
@json_option
def models(json_: bool) -> None:
    """List the models inside the package."""
    from ld3.report.tables import wrapped
    from ld3.zoo import SHIPPED

    facts = ("summary", "shape", "parameters", "prediction", "conditions", "licence")
    found = [
        {"name": name, **{fact: getattr(model, fact) for fact in facts}}
        for name, model in SHIPPED.items()
    ]
    columns: Columns = {
        "model": "name",
        "shape": lambda model: "x".join(map(str, model["shape"])),
        "parameters": lambda model: f"{model['parameters'] / 1e6:.2f} M",
        "predicts": "prediction",
        "what": "{summary}; {conditions}".format_map,
    }
    _print(found, json_, columns)
    if not json_:
        for licence in dict.fromkeys(entry["licence"] for entry in found):
            print_lines(wrapped(f"Licence: {licence}."))


def _print(entries: Iterable[Entry], as_json: bool, columns: Columns) -> None:
    if as_json:
        say(json.dumps(list(entries), indent=2))
        return
    rows = [
        [column(entry) if callable(column) else _text(entry[column]) for column in columns.values()]
        for entry in entries
    ]
    print_table([list(columns), *rows])


def _method(method: Entry) -> str:
    """Source, variable of even steps, and what a search needs."""
    even = f"; even steps in {method['even_in']}" if method["kind"] == "handmade" else ""
    needs = f"; needs {', '.join(method['needs'])}" if method["needs"] else ""
    return f"{method['source']}{even}{needs}"


def _text(value: object) -> str:
    return (", ".join(value) if isinstance(value, list) else str(value or "")) or "-"


def _span(solver: Entry) -> str:
    orders = solver["orders"]
    return f"{orders[0]}-{orders[-1]}" if len(orders) > 1 else str(orders[0])


COMMANDS = (solvers, methods, schedules, models)
