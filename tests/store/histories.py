"""Random histories for state machines of hypothesis: the same ones in every run."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.driving.making import Queue

SHORT = settings(
    max_examples=12,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def run_histories(machine: type[RuleBasedStateMachine], queue: Queue, how: settings = SHORT) -> None:
    """Run a state machine, which is made with a connection, through random histories."""

    class Here(machine):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(queue)

    run_state_machine_as_test(Here, settings=how)
