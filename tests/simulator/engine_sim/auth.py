"""Who may call what: SGLang's rule for `--api-key` and `--admin-api-key`.

Health, readiness and metrics are always open. Administrative paths want the admin key if there is one, else the API
key; all other paths want the API key if there is one.
"""

from __future__ import annotations

import secrets

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

_OPEN_PREFIXES = ("/health", "/ready", "/metrics")
ADMIN_PATHS = frozenset({"/set_internal_state", "/flush_cache"})


def allowed(
    *, method: str, path: str, authorization: str | None, api_key: str | None, admin_api_key: str | None
) -> bool:
    """Decide one request by its `Authorization: Bearer …` header."""
    if method == "OPTIONS" or path.startswith(_OPEN_PREFIXES):
        return True
    expected = (admin_api_key or api_key) if path in ADMIN_PATHS else api_key
    if not expected:
        return True
    scheme, _, token = (authorization or "").partition(" ")
    return scheme.lower() == "bearer" and secrets.compare_digest(token.encode(), expected.encode())


def key_middleware(api_key: str | None, admin_api_key: str | None) -> Middleware:
    """Refuse with 401 what `allowed` forbids. The simulator's own paths stay open: they are no part of SGLang."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/simulator/") or allowed(
            method=request.method,
            path=request.path,
            authorization=request.headers.get("Authorization"),
            api_key=api_key,
            admin_api_key=admin_api_key,
        ):
            return await handler(request)
        return web.json_response({"error": "Unauthorized"}, status=401)

    return check
