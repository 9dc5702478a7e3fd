"""The resources, settings and reports of a pytest session; every pytest run imports its configuration.

Python's own finder loads the configuration, from the bytecode of the installation. pytest's finder would rewrite the
asserts of the whole package, but these modules have no asserts. In a fresh container, or if pytest cannot store its
bytecode, pytest would compile these modules in every run.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

sys.meta_path.insert(0, PathFinder)  # before pytest's finder
try:
    from pytest_ddpperf.run.session import configuration  # noqa: F401 - for its import, and its own imports
finally:
    sys.meta_path.remove(PathFinder)  # the first of two: the interpreter's own stays
