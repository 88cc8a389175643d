"""A model that no input may open: importing this module is what a stranger's code would do."""


def spring() -> None:
    """What an input names as its model."""
