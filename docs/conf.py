"""The site of these pages: `make docs` builds it into docs/_build, with warnings as errors."""

project = "Trisect"
author = "the Trisect authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "Trisect"
html_show_sourcelink = False
html_copy_source = False
