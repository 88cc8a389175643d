"""`ld3 solvers`, `methods`, `schedules`, `models`: what can be named in options."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from ld3.cli.options import Command, flag


def as_json(command: Command) -> Command:
    return flag("--json", "json_", help="Print JSON for programs.")(command)


@click.command()
@as_json
def solvers(json_: bool) -> None:
    """List the ODE solvers."""
    from ld3.solvers import SOLVERS

    if json_:
        _print_json(
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
        return
    _print_table(
        ("solver", "orders", "variants", "summary"),
        [
            (name, _span(kind.orders), ", ".join(filter(None, kind.variants)) or "-", kind.summary)
            for name, kind in SOLVERS.items()
        ],
    )


@click.command()
@as_json
def methods(json_: bool) -> None:
    """List the methods that choose the times: known grids, searches, learned."""
    from ld3.known_grids import METHODS
    from ld3.runs.compare.methods import LEARNED
    from ld3.runs.compare.spec import kind_of
    from ld3.searches.registry import SEARCHES

    rows: list[tuple[str, str, str | None, list[str], str]] = [
        (name, kind_of(name), method.variable, [], method.source)
        for name, method in METHODS.items()
    ]
    rows += [
        (name, kind_of(name), None, sorted(method.needs), method.source)
        for name, method in (SEARCHES | LEARNED).items()
    ]
    if json_:
        head = ("name", "kind", "even_in", "needs", "source")
        _print_json(dict(zip(head, row, strict=True)) for row in rows)
        return
    _print_table(
        ("method", "kind", "even steps in", "needs", "source"),
        [
            (name, kind, variable or "-", ", ".join(needs) or "-", source)
            for name, kind, variable, needs, source in rows
        ],
    )


@click.command()
@as_json
def schedules(json_: bool) -> None:
    """List the noise schedules."""
    from ld3.schedules import SCHEDULES, make_schedule

    rows = [(name, make_schedule(name), summary) for name, (_, summary) in SCHEDULES.items()]
    if json_:
        _print_json(
            {"name": name, "t_min": s.t_min, "t_max": s.t_max, "summary": summary}
            for name, s, summary in rows
        )
        return
    _print_table(
        ("schedule", "times", "summary"),
        [(name, f"{s.t_min:g} to {s.t_max:g}", summary) for name, s, summary in rows],
    )


@click.command()
@as_json
def models(json_: bool) -> None:
    """List the models inside the package."""
    from ld3.zoo import SHIPPED

    if json_:
        _print_json(
            {
                "name": name,
                "summary": model.summary,
                "shape": list(model.shape),
                "parameters": model.parameters,
                "prediction": model.prediction,
                "conditions": model.conditions,
                "licence": model.licence,
            }
            for name, model in SHIPPED.items()
        )
        return
    _print_table(
        ("model", "summary", "shape", "parameters", "predicts", "conditions", "licence"),
        [
            (
                name,
                model.summary,
                "x".join(map(str, model.shape)),
                f"{model.parameters / 1e6:.2f} M",
                model.prediction,
                model.conditions,
                model.licence,
            )
            for name, model in SHIPPED.items()
        ],
    )


def _print_json(rows: Iterable[dict[str, Any]]) -> None:
    click.echo(json.dumps(list(rows), indent=2))


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from ld3.report.tables import table_lines

    for line in table_lines([head, *rows]):
        click.echo(line)


def _span(orders: Sequence[int]) -> str:
    return f"{orders[0]}-{orders[-1]}" if len(orders) > 1 else str(orders[0])


COMMANDS = (solvers, methods, schedules, models)
