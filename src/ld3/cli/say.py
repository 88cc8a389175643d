"""The one place that prints: text from files and models must not steer a terminal."""

import click

from ld3.errors import printable


def say(text: str = "", err: bool = False) -> None:
    """Print without control characters."""
    click.echo(printable(text), err=err)
