"""Leases: the attempts that this worker holds, and until when it may trust that it still does."""

from __future__ import annotations

from collections.abc import Iterable, KeysView

from outlive.errors import StaleAttempt
from outlive.model import Ended
from outlive.protocol import Reply
from outlive.states import Outcome
from outlive.worker import log
from outlive.worker.processes.assignments import GIVEN_UP
from outlive.worker.processes.children import Child

NOT_OURS = "attempt %d no longer belongs to this worker: its end is not written"


class Leases:
    def __init__(self, *, lease_s: float, renew_s: float) -> None:
        self.lease_s, self.renew_s, self._trusted_s = lease_s, renew_s, lease_s - renew_s
        self._trusted_until: dict[int, float] = {}
        """Monotonic times, by token."""
        self._disowned: set[int] = set()
        """Tokens that the database no longer has under this worker: their processes are killed, no end is written."""
        self.not_kept: set[int] = set()
        """Tokens of attempts that this worker could not keep although it lives: the database was away, or the machine
        stood still. If a reaper has ended one of them as lost, `TakingBack` takes the loss back."""
        self.renewals = self.fenced = 0
        """How many leases were renewed; how many ends were not written because their attempts belonged to others."""

    @property
    def tokens(self) -> KeysView[int]:
        return self._trusted_until.keys()

    def hold(self, tokens: Iterable[int], *, since: float) -> None:
        """Count from the moment at which the statement was sent: the database began to count later."""
        for token in tokens:
            self._trusted_until[token] = since + self._trusted_s

    def renew(self, tokens: Iterable[int], *, since: float) -> None:
        """Like `hold`, for the attempts that this worker still holds."""
        held = [token for token in tokens if token in self._trusted_until]
        self.renewals += len(held)
        self.hold(held, since=since)

    def trust_until(self, token: int, moment: float) -> None:
        if token in self._trusted_until:
            self._trusted_until[token] = max(self._trusted_until[token], moment)

    def drop(self, token: int) -> None:
        self._trusted_until.pop(token, None)
        self._disowned.discard(token)

    def lose(self, token: int) -> None:
        """Others have ended this attempt."""
        self.not_kept.add(token)
        self.drop(token)

    def note_refused_end(self, end: Ended) -> None:
        """The database has refused the end of an attempt: others have ended it."""
        self.fenced += 1
        log.warning(NOT_OURS, end.token)
        if end.outcome is not Outcome.LOST:  # Such an end is refused too if it was written before.
            self.lose(end.token)

    def expired(self, token: int, now: float) -> bool:
        return now > self._trusted_until.get(token, now)

    def disown(self, token: int) -> None:
        self.not_kept.add(token)
        self._disowned.add(token)

    def disowned(self, token: int) -> bool:
        return token in self._disowned

    def refuse(self, child: Child, token: int, number: int) -> Reply | None:
        """The answer to a call of an attempt that the database no longer has; None: the watch ends its job.

        It is answered if the child does not run that attempt any more, or if the job itself may have ended it. Any
        other job is killed, or cancelled if it shares its process: an error would let its code undo what it has done,
        while the next attempt goes on with that.
        """
        if (one := child.find(token)) is None or one.may_be_over:
            return Reply.refusing(number, StaleAttempt(f"attempt {token} is no longer under way"))
        if number:
            child.asking -= 1
        if not self.disowned(token):
            what = "it is cancelled" if child.shared else "its process is killed"
            log.error("the database no longer has attempt %d, which asks for something: %s", token, what)
            self.disown(token)
            one.decide(GIVEN_UP)
        return None
