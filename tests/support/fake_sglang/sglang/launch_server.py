"""A server that decodes a token a millisecond, two where it speculates; with `--attention-backend broken` it ends."""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ARGUMENTS = sys.argv[1:]
STEP_SECONDS = 0.001
STEP_TOKENS = 2 if "--speculative-algorithm" in ARGUMENTS else 1


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        state = {"memory_usage": {"weight": 16.0, "graph": 1.5}}
        self.answer({"internal_states": [state]} if self.path == "/server_info" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = body["sampling_params"]["max_new_tokens"]
        time.sleep(tokens * STEP_SECONDS / STEP_TOKENS)
        for _ in range(3):
            print("Decode batch, #running-req: 1, token usage: 0.0, gen throughput (token/s): 500.0, #queue-req: 0")
        sys.stdout.flush()
        steps = tokens // 2 if STEP_TOKENS == 2 else 0
        self.answer({"output_ids": [7] * tokens, "meta_info": {"spec_verify_ct": steps}})

    def answer(self, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Keep the log for what a server says."""


if __name__ == "__main__":
    if ARGUMENTS[ARGUMENTS.index("--attention-backend") + 1] == "broken":
        sys.exit("ValueError: no such backend")
    ThreadingHTTPServer(("127.0.0.1", int(ARGUMENTS[ARGUMENTS.index("--port") + 1])), Handler).serve_forever()
