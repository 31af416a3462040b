"""`check`: is this tree what was patched, and does it still do what it should here?"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..result import Outcome
from .shared import located_root, patched, prove_copy, prove_loaded, verified


def check(options: argparse.Namespace) -> Outcome:
    """Verify every digest of a patched tree and prove it again."""
    root = Path(options.tree).absolute() if options.tree else located_root()
    manifest = verified(root)
    prove = prove_copy if options.tree else prove_loaded
    prove(root, manifest, options.check_timeout)
    return patched(manifest, root, "unchanged and proven")
