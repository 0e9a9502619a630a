"""LitServe: two workers that batch; `--tuned` adds what helps a server with a deadline."""

import argparse
from typing import Any

import litserve as ls
from fastapi import HTTPException

from benchmarks.peers.apps.work import MAX_BATCH, MAX_WAIT_S, WORKERS, Work
from benchmarks.tools.workload import decode


class Ensemble(ls.LitAPI):
    """Requests are decoded one by one, and classified together."""

    def setup(self, device: Any) -> None:
        self.work = Work()

    # Without types: LitServe would take them for the form of the body.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        try:
            return request["uuid"], decode(request["image"])
        except (KeyError, ValueError) as error:
            raise HTTPException(400, str(error)) from error

    def batch(self, inputs: Any) -> Any:
        return inputs

    def predict(self, batch: Any) -> Any:
        uuids = [uuid for uuid, _ in batch]
        classes = self.work.classify(uuids, [picture for _, picture in batch])
        return [{"uuid": uuid, "answer": answer} for uuid, answer in zip(uuids, classes, strict=True)]

    def unbatch(self, output: Any) -> Any:
        return output

    def encode_response(self, output):  # type: ignore[no-untyped-def]
        return output


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tuned", action="store_true")
    options = parser.parse_args()
    more: dict[str, Any] = {"timeout": 0.15, "restart_workers": True, "fast_queue": True} if options.tuned else {}
    api = Ensemble(max_batch_size=MAX_BATCH, batch_timeout=MAX_WAIT_S, api_path="/predictions/ensemble")
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=WORKERS, **more)
    server.run(host="127.0.0.1", port=options.port, generate_client_file=False, log_level="warning", access_log=False)
