"""The page: `page.html` with texts and tables filled in; `page.js` draws images and charts.

All text from outside is escaped, the data sit in a block that browsers do not run, and a content
policy allows the one script of ours and nothing from the network.
"""

import hashlib
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ld3.comparison import Block, Comparison, Method, Metric, Range, Row
from ld3.report.tables import ratio_text
from ld3.store import write_bytes

WHO = ("Method", "Kind", "Solver", "NFE")
MEASURED = ("Ratio to best baseline", "Nearer than baseline", "Evaluations", "Seconds", "Worst")


def write_report(comparison: Comparison, folder: Path) -> Path:
    """`report.html` in the folder."""
    path = folder / "report.html"
    write_bytes(path, page(comparison).encode())
    return path


def page(c: Comparison) -> str:
    """The whole file."""
    decided = _decided(c)
    searched = any(row.curve for block in c.blocks for row in block.rows)
    script = _asset("page.js")
    return Template(_asset("page.html")).substitute(
        policy=_policy(script),
        css=_asset("page.css"),
        script=script,
        data=_data(c),
        model=escape(str(c.model.get("name", ""))),
        version=escape(c.versions.get("ld3", "")),
        headline=escape(headline(c)),
        setting=escape(_setting(c)),
        choices=_choices(c),
        no_pictures="" if c.pictures else "hidden",
        teacher=escape(_solver_words(c.teacher)),
        no_overview="" if decided else "hidden",
        featured=escape(decided[0].featured or "") if decided else "",
        overview=_overview(decided),
        curves="\n".join(_figure(metric) for metric in c.metrics),
        no_learning="" if searched else "hidden",
        table=_table(c),
        command=escape(c.command.replace(" --", " \\\n    --")),
        facts=_listed(_facts(c)),
        methods=_listed({m.name: _about_method(m) for m in c.methods}),
    )


def _decided(c: Comparison) -> list[Block]:
    """Blocks in which a learned method was compared with a baseline."""
    return [block for block in c.blocks if block.gain]


def _asset(name: str) -> str:
    return (files("ld3.report") / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Nothing from outside, and no script but this one."""
    allowed = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    )


def _data(c: Comparison) -> str:
    """JSON that cannot leave its block."""
    kept = c.model_dump(mode="json", include={"metrics", "methods", "blocks", "pictures"})
    shown = {(s.solver, s.nfe): s for s in c.pictures.sheets} if c.pictures else {}
    for block in kept["blocks"]:  # distances only where an image shows them
        sheet = shown.get((block["solver"], block["nfe"]))
        for row in block["rows"]:
            seen = sheet and row["method"] in (sheet.before, sheet.after) and sheet.before_png
            row["distances"] = {n: row["distances"][int(n)] for n in seen or ()}
    text = json.dumps(kept, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


# Words


def headline(c: Comparison) -> str:
    """The result in a sentence."""
    decided = _decided(c)
    if not decided:
        return c.blocks[0].verdict if c.blocks else "Nothing was compared."
    shown, count = decided[0].featured, Counter(block.gain for block in decided)
    settings = "setting" if len(decided) == 1 else "settings"
    text = f"{shown} beats the best baseline in {count['gain']} of {len(decided)} {settings}"
    if count["none"]:
        text += f", shows no gain in {count['none']}"
    if count["worse"]:
        text += f", is worse in {count['worse']}"
    rows = [row for block in decided for row in block.rows if row.method == shown]
    ratios = sorted(row.ratio.value for row in rows if row.ratio)
    span = " to ".join(map(ratio_text, dict.fromkeys((ratios[0], ratios[-1]))))
    return f"{text}: {span} of its distance to the teacher."


def _setting(c: Comparison) -> str:
    spec, first = c.spec, c.metrics[0]
    several = f" and {spec['seeds']} learning seeds" if spec.get("seeds", 1) != 1 else ""
    return (
        f"{len(c.methods)} methods on the same {spec.get('held_out')} held-out seeds{several}. "
        f"{first.label} ({first.unit}), lower is better."
    )


def _facts(c: Comparison) -> dict[str, str]:
    shape = "x".join(map(str, c.model.get("shape", [])))
    facts = {
        "Model": f"{c.model.get('name')}, weights {c.model.get('digest')}, shape {shape}, "
        f"predicts {c.model.get('prediction')}",
        "Teacher": _solver_words(c.teacher),
        "Reference solution": _solver_words(c.teacher.get("accurate", {})),
        "Versions": ", ".join(f"{name} {value}" for name, value in c.versions.items()),
    }
    return facts | {f"Seeds of {what}": numbers for what, numbers in c.seeds.items()}


def _solver_words(solver: Mapping[str, Any]) -> str:
    name, order, grid, steps = (solver.get(key) for key in ("solver", "order", "grid", "steps"))
    return f"{name}-{order}, {steps} steps on the {grid} grid"


def _about_method(method: Method) -> str:
    needs = f"; looks at {', '.join(method.needs)}" if method.needs else ""
    return f"{method.kind}: {method.source}{needs}"


def _listed(facts: Mapping[str, str]) -> str:
    return "\n".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())


# Parts


def _choices(c: Comparison) -> str:
    solvers = list(dict.fromkeys(block.solver for block in c.blocks))
    counts = list(dict.fromkeys(block.nfe for block in c.blocks))
    return _radios("solver", "Solver", solvers) + _radios("nfe", "Evaluations", counts)


def _radios(name: str, label: str, values: list[Any]) -> str:
    parts = []
    for number, value in enumerate(values):
        shown, checked = escape(str(value)), " checked" if number == 0 else ""
        parts.append(
            f'<label><input type="radio" name="{name}" value="{shown}"{checked}>'
            f"<span>{shown}</span></label>"
        )
    return f"<fieldset><legend>{label}</legend>{''.join(parts)}</fieldset>\n"


def _overview(blocks: list[Block]) -> str:
    """A row a solver, a column a number of evaluations: the ratios."""
    solvers = dict.fromkeys(block.solver for block in blocks)
    counts = sorted({block.nfe for block in blocks})
    where = {(block.solver, block.nfe): block for block in blocks}
    head = "".join(f'<th scope="col">{count} evaluations</th>' for count in counts)
    rows = ""
    for solver in solvers:
        cells = "".join(_verdict(where.get((solver, count))) for count in counts)
        rows += f'<tr><th scope="row">{escape(solver)}</th>{cells}</tr>\n'
    return f'<thead><tr><th scope="col">Solver</th>{head}</tr></thead><tbody>\n{rows}</tbody>'


def _verdict(block: Block | None) -> str:
    row = next((r for r in block.rows if r.method == block.featured), None) if block else None
    if block is None or row is None or row.ratio is None:
        return "<td></td>"
    word = {"gain": "gain over", "none": "no gain over", "worse": "worse than"}.get(block.gain)
    ratio = row.ratio
    return (
        f'<td class="{block.gain}"><b>{ratio_text(ratio.value)}</b> <span class="muted">'
        f"{ratio_text(ratio.low)}–{ratio_text(ratio.high)}</span><br><small>{word} "
        f"{escape(block.baseline or '')}</small></td>"
    )


def _figure(metric: Metric) -> str:
    note = metric.unit + ", higher is better" * (metric.better == "higher")
    return (
        f"<figure><figcaption><b>{escape(metric.label)}</b> "
        f'<span class="muted">{escape(note.removeprefix(", "))}</span></figcaption>'
        f'<div class="chart" data-metric="{escape(metric.key)}"></div></figure>'
    )


def _table(c: Comparison) -> str:
    """Every row of every block."""
    main, *others = [metric.label for metric in c.metrics]
    names = [*WHO, main, *MEASURED, *others]
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(name)}</button></th>'
        for name in names
    )
    rows = "".join(_row(block, row, c.metrics) for block in c.blocks for row in block.rows)
    return f"<thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody>"


def _row(block: Block, row: Row, metrics: list[Metric]) -> str:
    best = row.method == block.baseline
    role = "baseline" if best else "featured" if row.method == block.featured else ""
    note = "<small>best baseline</small>" if best else ""
    cells = [
        f'<th scope="row" data-v="{escape(row.method)}">{escape(row.method)}{note}</th>',
        _cell(row.kind, None),
        _cell(block.solver, None),
        _cell(str(block.nfe), block.nfe),
    ]
    if row.failed:
        rest = len(metrics) + len(MEASURED)
        cells.append(f'<td colspan="{rest}">failed: {escape(row.failed)}</td>')
    else:
        main, *others = [_ranged(row.scores.get(metric.key)) for metric in metrics]
        nearer = None if best else row.wins
        cost = row.evaluations + row.teacher_evaluations
        cells += [
            main,
            _ranged(row.ratio, ratio_text),
            _cell("" if nearer is None else f"{100 * nearer:.0f} %", nearer),
            _cell(f"{cost:,}", cost),
            _cell(f"{row.seconds:.1f}", row.seconds),
            _cell("" if row.worst is None else f"{row.worst:.3g}", row.worst),
            *others,
        ]
    where = f'data-solver="{escape(block.solver)}" data-nfe="{block.nfe}"'
    return f'<tr class="{role}" {where}>{"".join(cells)}</tr>\n'


def _cell(text: str, value: float | None) -> str:
    data = f' class="number" data-v="{value!r}"' if value is not None else ""
    return f"<td{data}>{escape(text)}</td>"


def _ranged(interval: Range | None, show: Callable[[float], str] = "{:.3g}".format) -> str:
    if interval is None:
        return "<td></td>"
    return (
        f'<td class="number" data-v="{interval.value!r}">{show(interval.value)}'
        f"<small>{show(interval.low)}–{show(interval.high)}</small></td>"
    )
