from __future__ import annotations

from tests.scheduler.worlds import ticket, trained

from timebound.lab.machine import GPU_LIKE
from timebound.scheduler import Scheduler
from timebound.scheduler.served import PATIENT_TICKETS

DEADLINE_S, LATER_S = 0.1, 5.0


def batch_size(timeouts_s: list[float]) -> int:
    """Of the first batch, when requests with these timeouts have come, all at once."""
    scheduler: Scheduler = trained(GPU_LIKE, DEADLINE_S)
    scheduler.set_slots(1)
    for seq, timeout_s in enumerate(timeouts_s):
        scheduler.offer(ticket(seq, timeout_s), 0.0)
    batch = scheduler.take(0.0)
    assert batch is not None
    return len(batch)


def test_batches_may_take_longer_while_everybody_waits_longer_than_the_deadline() -> None:
    patient = [LATER_S] * PATIENT_TICKETS
    assert batch_size(patient) > 1.5 * batch_size(patient[:-1])


def test_the_first_who_does_not_wait_longer_ends_it() -> None:
    patient = [LATER_S] * PATIENT_TICKETS
    hopeless = DEADLINE_S / 50  # not queued, so that only its coming counts
    assert batch_size([*patient, hopeless]) < batch_size(patient)


def test_a_tiny_timeout_makes_batches_no_smaller_than_the_deadline_does() -> None:
    usual = [DEADLINE_S] * PATIENT_TICKETS
    assert batch_size([*usual, DEADLINE_S / 50]) == batch_size(usual)
