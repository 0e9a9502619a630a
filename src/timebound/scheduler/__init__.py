"""Which requests run together, and when: pure logic, without sockets, processes or a clock."""

from timebound.scheduler.scheduler import Scheduler
from timebound.scheduler.ticket import Batch, ModelSpec, SetAside, State, Step, Ticket, Verdict

__all__ = ["Batch", "ModelSpec", "Scheduler", "SetAside", "State", "Step", "Ticket", "Verdict"]
