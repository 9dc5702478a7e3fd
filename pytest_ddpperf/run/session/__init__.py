"""The resources, settings and reports of a pytest session.

Every pytest run imports ``configuration``. Python's own finder imports this module from its installed bytecode.
pytest's finder would search the module for asserts to rewrite, although the module has none. In a container that cannot
store bytecode, pytest's finder would also compile the module in every run.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

sys.meta_path.insert(0, PathFinder)  # before pytest's finder
try:
    from pytest_ddpperf.run.session import configuration  # noqa: F401 - for its import, and its own imports
finally:
    sys.meta_path.remove(PathFinder)  # the first of two: the interpreter's own stays
