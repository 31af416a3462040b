"""How a build reaches package indexes the way the host does, without a trace of the host in the image.

The host's CA bundle and a pip configuration, merged from the host's files and environment, are mounted read-only over
files that the base image has anyway.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_CONFIG = Path("/etc/pip.conf")
_FIND_LINKS = Path("/mnt")
_CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# Settings that say where packages come from. Others, such as `target` or `user`, would change what is built.
_PIP_SETTINGS = (
    "index-url",
    "extra-index-url",
    "trusted-host",
    "find-links",
    "no-index",
    "proxy",
    "timeout",
    "retries",
    "cert",
)
_ARG = re.compile(r"^\s*ARG\s+([A-Za-z_][A-Za-z0-9_]*)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Mount:
    """A host's file or folder, shown read-only to the build's commands."""

    source: Path
    target: Path


def declared_arguments(dockerfile: Path) -> frozenset[str]:
    """The names of the Dockerfile's ARG lines."""
    return frozenset(_ARG.findall(dockerfile.read_text()))


def build_arguments(dockerfile: Path) -> list[str]:
    """NAME=VALUE for the CA variables that the Dockerfile asks for by an ARG line."""
    wanted = declared_arguments(dockerfile)
    return [f"{name}={CA_BUNDLE}" for name in _CA_VARIABLES if name in wanted]


def mounts(scratch: Path) -> list[Mount]:
    """What to mount; the merged pip configuration is written into `scratch`."""
    found = []
    bundle = _host_bundle()
    if bundle is not None:
        found.append(Mount(bundle, CA_BUNDLE))
    settings = dict(_pip_settings())
    links = Path(settings.get("find-links", ""))
    if links.is_absolute() and links.is_dir() and any(links.iterdir()):
        found.append(Mount(links, _FIND_LINKS))
        settings["find-links"] = str(_FIND_LINKS)
    elif links.is_absolute():
        del settings["find-links"]
    if "cert" in settings:
        settings["cert"] = str(CA_BUNDLE)
    file = scratch / "pip.conf"
    # Readable to every user of the build; the folder keeps the host's other users out.
    file.touch(mode=0o644)
    file.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
    found.append(Mount(file, _PIP_CONFIG))
    return found


def _host_bundle() -> Path | None:
    for candidate in (*(os.environ.get(name, "") for name in _CA_VARIABLES), str(CA_BUNDLE)):
        if candidate and Path(candidate).is_file():
            return Path(candidate).resolve()
    return None


def _pip_settings() -> Iterator[tuple[str, str]]:
    """pip's own order: system, user, named file, environment; later ones win."""
    home = Path.home()
    files = [Path("/etc/xdg/pip/pip.conf"), _PIP_CONFIG, home / ".pip/pip.conf", home / ".config/pip/pip.conf"]
    named = os.environ.get("PIP_CONFIG_FILE")
    parser = configparser.RawConfigParser()
    parser.read([*files, *([named] if named else [])])
    for section in ("global", "install"):
        if parser.has_section(section):
            for name, value in parser.items(section):
                if name.replace("_", "-") in _PIP_SETTINGS:
                    # A value of several lines stays one when its lines are indented.
                    yield name.replace("_", "-"), value.replace("\n", "\n    ")
    for setting in _PIP_SETTINGS:
        if chosen := os.environ.get("PIP_" + setting.upper().replace("-", "_")):
            yield setting, chosen
    if default_timeout := os.environ.get("PIP_DEFAULT_TIMEOUT"):
        yield "timeout", default_timeout
