"""What a pytest session owns, asks and reports; every pytest run imports what is asked of it.

That is loaded as Python does it: from the bytecode that came with the installation. pytest rewrites the asserts of a
plugin's whole package; what every run loads has none. In a fresh container, or where pytest cannot keep what it has
compiled, it would compile these modules anew.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

sys.meta_path.insert(0, PathFinder)  # before pytest's finder
try:
    from pytest_ddpperf.run.session import configuration  # noqa: F401 - for its import, and the imports that it makes
finally:
    sys.meta_path.remove(PathFinder)  # the first of two: the interpreter's own stays
