"""`python3 hack/cluster COMMAND`: a Kubernetes cluster with two GPU nodes on one Linux machine."""

from __future__ import annotations

import sys

from localcluster.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
