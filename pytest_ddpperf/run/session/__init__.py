"""The resources, settings and reports of a pytest session; every pytest run imports its configuration.

Python's own finder loads it, from the bytecode of the installation. pytest's finder rewrites the asserts of a plugin's
whole package, but the modules of every run have none. In a fresh container, or if pytest cannot keep its bytecode,
pytest would compile these modules anew.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

sys.meta_path.insert(0, PathFinder)  # before pytest's finder
try:
    from pytest_ddpperf.run.session import configuration  # noqa: F401 - for its import, and its own imports
finally:
    sys.meta_path.remove(PathFinder)  # the first of two: the interpreter's own stays
