"""The report: one HTML file that needs no network.

`document` turns a plan and what is known about it into one plain document (JSON); `page` puts it, the
template, the style and the scripts into one file. The scripts draw all that is visible from the document.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

_SCRIPTS = ("parts.js", "plan.js", "charts.js", "fleet.js", "comparison.js", "page.js")
_LIVE = "'self'"
_NO_NETWORK = "'none'"


def page(title: str, document: Mapping[str, object], *, live: bool = False) -> str:
    """Return the file's text. It opens no connection, unless it is `live`: then to its own server only."""
    environment = Environment(loader=PackageLoader(__name__, "."), undefined=StrictUndefined, autoescape=True)
    return environment.get_template("page.html.j2").render(
        title=title,
        connect=Markup(_LIVE if live else _NO_NETWORK),
        style=Markup(_text("page.css")),
        script=Markup("\n".join(map(_text, _SCRIPTS))),
        document=Markup(embedded(document)),
    )


def embedded(document: Mapping[str, object]) -> str:
    """Return JSON that may stand inside a script element: no name in it can end the element."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _text(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
