"""k-diffusion, AUTOMATIC1111 and Forge: their sampling modules, in a process of their own."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from rows import Row, commit

HERE = Path(__file__).parent


def test_modules(tool: str, checkout: Path, python: str, kdiffusion: Path | None) -> list[Row]:
    """Rows of `module_runs.py`; AUTOMATIC1111 uses the checkout of k-diffusion."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1] / "src")}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        words = [tool, str(checkout), str(kdiffusion or checkout), str(out)]
        command = [python, str(HERE / "module_runs.py"), *words]
        subprocess.run(command, env=environment, check=True, cwd=folder)
        return [Row(version(tool, checkout), *row) for row in json.loads(out.read_text())]


def version(tool: str, checkout: Path) -> str:
    """Name and version, as far as a checkout says it."""
    if tool == "kdiffusion":
        number = (checkout / "setup.cfg").read_text().partition("version = ")[2].splitlines()[0]
        return f"k-diffusion {number}{commit(checkout)}"
    if tool == "forge":
        return f"Forge{commit(checkout)}"
    number = (checkout / "CHANGELOG.md").read_text().partition("## ")[2].splitlines()[0].strip()
    return f"AUTOMATIC1111 {number}{commit(checkout)}"
