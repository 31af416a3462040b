"""Entry point: settings from the environment, logging, and the process that runs until a signal comes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys

from pydantic import ValidationError

from sglang_operator import settings as operator_settings
from sglang_operator.errors import OperatorError
from sglang_operator.handlers.process import run
from sglang_operator.render.enginepatch import PatchArchive
from sglang_specpatch import archive

logger = logging.getLogger("sglang_operator")


def main() -> int:
    """Run the operator; returns the process's exit code: 0 after a signal, 1 after a failure, 2 on bad settings."""
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
