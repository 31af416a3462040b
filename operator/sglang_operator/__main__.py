"""Entry point: the operator, which runs until a signal comes and is set by the environment, or one of the commands."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys

logger = logging.getLogger("sglang_operator")

USAGE = """usage: sglang-operator               run the operator, set by SGLANG_OPERATOR_* variables
       sglang-operator simulate …    run the tuner against a simulated server; simulate --help tells more"""


def main() -> int:
    """Run what the arguments ask for; returns the process's exit code, 2 for arguments that can't be used.

    Each part imports what it needs itself: a simulation needs no client of a cluster, which take a second to import.
    """
    match sys.argv[1:]:
        case []:
            return _operate()
        case ["simulate", *arguments]:
            from sglang_operator.simulate.command import main as simulate

            return simulate(arguments)
        case ["-h" | "--help"]:
            print(USAGE)
            return 0
        case _:
            print(USAGE, file=sys.stderr)
            return 2


def _operate() -> int:
    """Run the operator; returns 0 after a signal, 1 after a failure, 2 on bad settings."""
    from pydantic import ValidationError

    from sglang_operator import settings as operator_settings
    from sglang_operator.errors import OperatorError
    from sglang_operator.handlers.process import run
    from sglang_operator.render.enginepatch import PatchArchive
    from sglang_specpatch import archive

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    # One line for each event and each probe: the passes say what matters.
    for name in ("kopf.objects", "kopf.activities.probe", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It repeats each retry with the whole query; the adapter's own error says what matters.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    try:
        settings = operator_settings.from_environment()
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            field = ".".join(str(part) for part in problem["loc"]).upper()
            logger.error("%s%s: %s", operator_settings.PREFIX, field, problem["msg"])
        return 2
    content = archive.build()
    patch = PatchArchive(digest=hashlib.sha256(content).hexdigest(), content=content)
    try:
        asyncio.run(run(settings, patch))
    except OperatorError as error:
        logger.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
