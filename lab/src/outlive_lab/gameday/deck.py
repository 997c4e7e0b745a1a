"""The faults of each kind of game: how often each happens, to whom, and how."""

from __future__ import annotations

from outlive_lab.gameday.faults import Deck, Faults
from outlive_lab.gameday.history import FAILOVERS, Kind

DECK: Deck = {
    Kind.CHILD: (38, Faults._at_work, Faults._strike),
    Kind.SHARED: (10, Faults._shared, Faults._strike),
    Kind.SPARE: (8, Faults._spare, Faults._strike),
    Kind.ZYGOTE: (6, Faults._zygotes, Faults._strike),
    Kind.SUPERVISOR: (5, Faults._mortal, Faults._kill_beside_witness),
    Kind.TREE: (5, Faults._mortal, Faults._kill_beside_witness),
    Kind.HEAD: (2, Faults._mortal, Faults._kill_beside_witness),
    Kind.EVERYBODY: (1, Faults._all_at_once, Faults._kill_all),
    Kind.REVIVAL: (2, Faults._zygotes, Faults._strike_and_import_badly),
    Kind.DEPLOY: (4, Faults._mortal, Faults._deploy),
    Kind.STOP: (3, Faults._mortal, Faults._tell_to_stop),
    Kind.RELOAD: (2, Faults._steady, Faults._reload),
    Kind.FREEZE: (3, Faults._not_spared, Faults._freeze),
    Kind.OVERDUE: (1, Faults._short_leases, Faults._freeze_past_lease),
    Kind.PAUSE: (3, Faults._completing, Faults._freeze_past_lease),
    Kind.LOCK: (4, Faults._any_server, Faults._lock),
    Kind.READ_ONLY: (1, Faults._own_server, Faults._forbid_writing),
    Kind.BACKEND: (1, Faults._sessions, Faults._end_session),
    Kind.RESTART: (1, Faults._own_server, Faults._restart),
    Kind.OUTAGE: (1, Faults._calm_server, Faults._restart),
    Kind.MACHINE: (1, Faults._machine, Faults._freeze_machine),
    Kind.OOM: (3, Faults._squeezable, Faults._squeeze),
    Kind.QUEUE: (3, Faults._any_server, Faults._pause_queue),
    Kind.CROWD: (0, Faults._any_server, lambda self, fault, _: self._crowd(fault)),
}

HA_DECK: Deck = {
    Kind.CHILD: (20, Faults._at_work, Faults._strike),
    Kind.TREE: (4, Faults._mortal, Faults._kill_beside_witness),
    Kind.ZYGOTE: (4, Faults._zygotes, Faults._strike),
    **dict.fromkeys(FAILOVERS, (2, Faults._clusters, Faults._fail_over)),
}
"""Few workers are killed: one that is declared dead without reason shows better."""
