"""How Sphinx builds the documentation: ``sphinx-build -W -n -b html docs docs/_build``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for reference_tables

project = "pytest-ddpperf"
html_title = project
extensions = ["myst_parser", "reference_tables"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
html_theme = "furo"
