"""Sphinx: MyST pages, furo theme, autodoc. Formulas become MathML, so pages need no network."""

import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

import ld3

project = "ld3"
author = "the ld3 authors"
project_copyright = author
version = release = ld3.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "models/*-facts.md", "results/**"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"ld3 {version}"
html_copy_source = False
html_css_files = ["ld3.css"]
html_static_path = ["_static"]
html_math_renderer = "mathml"

default_role = "code"  # docstrings write `name`
highlight_language = "text"
smartquotes_action = "qe"  # --full stays as it is
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88


def _mathml(node: nodes.Element) -> str:
    tex = re.sub(r"(\\(?:log|tan|arctan)) +", r"\1\\,", node.astext())  # browsers add no space
    try:
        return tex2mathml(tex)
    except MathError as error:
        logging.getLogger(__name__).warning("%s in $%s$", error, node.astext(), location=node)
        return "?"


def _inline_math(translator: nodes.NodeVisitor, node: nodes.math) -> None:
    translator.body.append(_mathml(node))
    raise nodes.SkipNode


def _block_math(translator: nodes.NodeVisitor, node: nodes.math_block) -> None:
    formula = _mathml(node).replace("<math ", '<math display="block" ', 1)
    translator.body.append(f'<div class="formula">{formula}</div>\n')
    raise nodes.SkipNode


def _plain_formulas(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Docstrings hold formulas as plain text: indented ones become literal blocks, and outside of
    backticks `x_+` is no link and `(B, *shape)` is no emphasis."""
    result: list[str] = []
    literal = False
    for line in lines:
        if literal:
            literal = not line.strip() or line.startswith("  ")
        elif line.startswith("    ") and result and not result[-1].strip():
            result += [".. code-block:: none", ""]
            literal = True
        if not literal:
            parts = re.split(r"(`+[^`]*`+)", line)
            parts[::2] = [re.sub(r"(_(?!\w)|\*(?=\w+\)))", r"\\\1", part) for part in parts[::2]]
            line = "".join(parts)
        result.append(line)
    lines[:] = result


def _no_constructor(
    app: Sphinx, what: str, name: str, obj: object, options: object, args: str, returns: str
) -> tuple[str, str] | None:
    """Protocols are not made, so they show no arguments."""
    return ("", "") if getattr(obj, "_is_protocol", False) else None


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (_inline_math, None), (_block_math, None))
    app.connect("autodoc-process-docstring", _plain_formulas)
    app.connect("autodoc-process-signature", _no_constructor)
