"""What the tests share: pytest's own tester for plugins."""

from __future__ import annotations

pytest_plugins = ["pytester"]
