"""What a job is told if others have ended its attempt while it runs here: nothing, and its process is killed. One that
shares its process is cancelled.

An error would let its code undo what it has done, while the next attempt goes on with that.
"""

from __future__ import annotations

import logging

from outlive.errors import StaleAttempt
from outlive.protocol import Reply
from outlive.worker.attempts.leases import Leases
from outlive.worker.processes.assignments import GIVEN_UP
from outlive.worker.processes.children import Child

_log = logging.getLogger("outlive.worker")


def refuse(leases: Leases, child: Child, token: int, number: int) -> Reply | None:
    """The answer to a call of an attempt that the database no longer has; None: the watch kills its process.

    It is answered if the child does not run that attempt any more, or if the job itself may have ended it.
    """
    if (one := child.find(token)) is None or one.may_be_over:
        return Reply(number, f"attempt {token} is no longer under way".encode(), StaleAttempt.__name__)
    if number:
        child.asking -= 1
    if not leases.disowned(token):
        what = "it is cancelled" if child.shared else "its process is killed"
        _log.error("the database no longer has attempt %d, which asks for something: %s", token, what)
        leases.disown(token)
        one.decide(GIVEN_UP)
    return None
