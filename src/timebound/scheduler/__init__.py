"""Which requests run together, and when: pure logic, without sockets, processes or a clock."""

from collections.abc import Callable

from timebound.scheduler.policy import DeadlineFirst, Plan, Policy, View
from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.served import LaneView
from timebound.scheduler.ticket import Batch, ModelSpec, Phase, SetAside, Step, Ticket, Verdict

# A new policy is one file, and one line here.
POLICIES: dict[str, Callable[[], Policy]] = {"deadline_first": DeadlineFirst}

__all__ = [
    "POLICIES",
    "Batch",
    "LaneView",
    "ModelSpec",
    "Phase",
    "Plan",
    "Policy",
    "Scheduler",
    "SetAside",
    "Step",
    "Ticket",
    "Verdict",
    "View",
]
