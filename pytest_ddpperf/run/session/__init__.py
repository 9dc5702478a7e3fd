"""The resources, settings and reports of a pytest session.

Every pytest run imports ``configuration``. Python's own finder imports it here, from the installation's bytecode.
pytest's finder would look for asserts to rewrite, which these modules do not have, and would compile the modules in
every run that cannot store bytecode, as in a fresh container.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

sys.meta_path.insert(0, PathFinder)  # before pytest's finder
try:
    from pytest_ddpperf.run.session import configuration  # noqa: F401 - for its import, and its own imports
finally:
    sys.meta_path.remove(PathFinder)  # the first of two: the interpreter's own stays
