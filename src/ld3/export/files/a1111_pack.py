"""AUTOMATIC1111 and Forge: every plan file in the folder `plans` of this extension."""

from pathlib import Path

from ld3.export.files.a1111_lists import register_all
from ld3.export.files.ld3_plans import read_plans

FOLDER = Path(__file__).parent.parent / "plans"
register_all({f"LD3 {name}": plans for name, plans in read_plans(FOLDER).items()})
