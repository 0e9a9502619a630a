"""Ray's own autoscaler, deciding by `timebound.ray:policy`: one replica with too much to do, and the two it becomes."""

import threading
import time

from benchmarks.serving.apps.once_app import WORK_S
from benchmarks.tools.asking import OnceTraffic
from benchmarks.tools.contestants import ROOT
from benchmarks.tools.load import answers_right
from benchmarks.tools.openloop import drive
from benchmarks.tools.ray_cluster import Cluster, timebound_app
from benchmarks.tools.scaling import downs
from timebound.lab.load.attempts import End
from timebound.lab.load.schedule import Phase

CONFIG = {
    "min_replicas": 1,
    "max_replicas": 2,
    "upscale_delay_s": 3,
    "downscale_delay_s": 5,  # docs/ray.md says 120: whoever goes up and down is found out sooner
    "policy": {"policy_function": "timebound.ray:policy"},
}
USUAL, BUSY = 0.5, 1.5
"""Of what one replica can do. The second is three quarters of what two can do, and stays."""
NEVER_S = 1e9
_LOOK_EVERY_S = 0.25


def watch_scaling(before_s: float, busy_s: float, seed: int) -> dict[str, float]:
    """When the second replica is started, and how often one is taken away though the work stays."""
    target = ROOT / "benchmarks/serving/apps/once_app.py"
    app = timebound_app(target, options={"slots": 1}, cores=0.5, autoscaling_config=CONFIG)
    with Cluster(2) as cluster:
        traffic = OnceTraffic(cluster.port)
        cluster.deploy(app, is_up=lambda: answers_right(traffic))
        drive(traffic, [Phase(USUAL / WORK_S, before_s)], seed)
        watch = _Watch(cluster)
        watch.start()
        record = drive(traffic, [Phase(BUSY / WORK_S, busy_s)], seed)
        watch.stop()
    attempts = [attempt for question in record.questions for attempt in question.attempts]
    return {
        "ray_scale_up_s": watch.second_s,
        "ray_scale_downs": downs(watch.seen),
        "ray_scale_late_share": sum(attempt.end is End.TIMED_OUT for attempt in attempts) / max(1, len(attempts)),
    }


class _Watch(threading.Thread):
    """Counts the replicas' processes until it is told to stop."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._is_over = threading.Event()
        self.seen: list[int] = []
        self.second_s = NEVER_S
        """When there were two for the first time."""

    def run(self) -> None:
        began = time.monotonic()
        while not self._is_over.wait(_LOOK_EVERY_S):
            self.seen.append(self._cluster.replicas())
            if self.seen[-1] > 1 and self.second_s == NEVER_S:
                self.second_s = round(time.monotonic() - began, 2)

    def stop(self) -> None:
        """Look no more."""
        self._is_over.set()
        self.join()
