"""How Sphinx builds the documentation: ``sphinx-build -W -n -b html docs docs/_build``."""

from __future__ import annotations

project = "pytest-ddpperf"
html_title = project
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
suppress_warnings = ["toc.not_included"]  # of internals; a test finds all other pages in the navigation
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
html_theme = "furo"
