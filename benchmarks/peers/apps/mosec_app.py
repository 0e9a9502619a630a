"""mosec: one stage of two workers; port, timeout and capacity come from its own command line."""

from typing import Any

from mosec import Server, ValidationError, Worker

from benchmarks.peers.apps.work import MAX_BATCH, MAX_WAIT_S, WORKERS, Work


class Ensemble(Worker):
    """JSON in and out, as the base class does it."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    def forward(self, data: Any) -> Any:
        try:
            return self.work.answer(data)
        except (KeyError, ValueError) as error:
            raise ValidationError(str(error)) from error


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        Ensemble,
        num=WORKERS,
        max_batch_size=MAX_BATCH,
        max_wait_time=int(MAX_WAIT_S * 1000),
        route="/predictions/ensemble",
    )
    server.run()
