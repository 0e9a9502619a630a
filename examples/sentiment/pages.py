"""A small server of the invented posts, for `by_url.py` to read: `python pages.py [PORT]`."""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TAKES_S = 0.1
"""As pages do."""
SAMPLES = json.loads((Path(__file__).parent / "samples.json").read_text(encoding="utf-8"))
POSTS = {f"/{post['id']}": post["text"].encode() for post in SAMPLES}


class Pages(BaseHTTPRequestHandler):
    """Answers with the post of a path."""

    def do_GET(self) -> None:
        time.sleep(TAKES_S)
        text = POSTS.get(self.path)
        self.send_response(404 if text is None else 200)
        self.send_header("content-type", "text/plain; charset=utf-8")
        self.end_headers()
        self.wfile.write(text or b"there is no such post")

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing of requests."""


def main() -> None:
    """Serve until Ctrl-C."""
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8100), Pages)
    print(f"posts at http://127.0.0.1:{server.server_port}{next(iter(POSTS))}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
