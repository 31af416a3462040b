"""Start the simulated engine: in its image this file takes the place of SGLang's `sglang/launch_server.py`."""

import sys

from engine_sim.launch import launch

if __name__ == "__main__":
    launch(sys.argv[1:])
