"""Run with a release of SGLang on the path: print its server flags as JSON on the last line of standard output."""

from __future__ import annotations

import argparse
import json

from sglang.srt.server_args import ServerArgs


def main() -> None:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    flags = [
        {"spellings": action.option_strings, "destination": action.dest, "nargs": action.nargs}
        for action in parser._actions
    ]
    print(json.dumps(flags))


if __name__ == "__main__":
    main()
