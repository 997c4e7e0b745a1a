"""Whatever an address or a form has in it, the server has no error."""

from urllib.parse import quote, urlencode

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlive.dashboard.job_choice import FIELDS
from outlive.dashboard.jobs import ORDERS
from outlive.operations.controls import CONTROLS
from outlive.operations.verbs import VERBS
from outlive.states import Outcome, State

PATHS = ("/", "/jobs", "/killers", "/workers", "/queues", "/sources", "/schedules", "/batches", "/audit", "/confirm")
IDS = ("01a1e44e-59aa-7251-b8db-923b6d87e804", "01a1e44e", "0" * 32, "g" * 32, "../../etc", "%00", "")
WORDS = st.one_of(
    st.sampled_from(
        [
            *State,
            *IDS,
            *ORDERS,
            *("2h", "-1", "1e400", "9" * 40, "nan", "inf", "ids.1.2.3", "lanes.1.0.-5", "worker.x.y.z"),
            *(f"ids.{'9' * 30}.{'f' * 32}.1", f"lanes.-{'9' * 25}.{'0' * 32}.1", f"ids.0.{'0' * 32}.{'9' * 25}"),
            *(
                "%",
                "_",
                "\\",
                "'",
                '"',
                "\0",
                "\ud83d",
                "\u202e",
                "\x1b[31m",
                "<script>",
                "//evil.example",
                "javascript:x",
            ),
        ]
    ),
    st.text(max_size=300),
)
KEYS = st.sampled_from(
    [*FIELDS, "past", "sort", "done", "action", "back", "name", "id", "ids", "rate", "proof", "limit"]
)
ACTIONS = st.sampled_from([*VERBS, *(f"{verb}_all" for verb in VERBS), *CONTROLS, "cancel_batch", "nonsense"])
FAST = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def encoded(pairs: list[tuple[str, str]]) -> str:
    return urlencode([(key, value.encode("utf-8", "surrogatepass")) for key, value in pairs])


@FAST
@given(path=st.sampled_from(PATHS), pairs=st.lists(st.tuples(KEYS, WORDS), max_size=6))
def test_no_query_breaks_a_page(dashboard, path, pairs):
    assert dashboard.get(f"{path}?{encoded(pairs)}").status_code in (200, 303, 400, 401, 404, 429)


@FAST
@given(folder=st.sampled_from(["/jobs/", "/batches/", "/static/", "/"]), name=WORDS)
def test_no_path_breaks_a_page(dashboard, folder, name):
    path = folder + quote(name.encode("utf-8", "surrogatepass"), safe="")
    if not name.startswith("live"):  # A stream does not end.
        assert dashboard.viewer.get(path).status_code in (200, 303, 307, 401, 403, 404, 405)


@FAST
@given(action=ACTIONS, pairs=st.lists(st.tuples(KEYS, WORDS), max_size=6))
def test_no_form_breaks_an_action(dashboard, queue, action, pairs):
    proof = dashboard.operator.proof()
    fields = [*((key, value) for key, value in pairs if key not in ("proof", "action")), ("action", action)]
    answer = dashboard.operator.post_body("/act", encoded([*fields, ("proof", proof)]))
    assert answer.status_code in (303, 400)
    if answer.status_code == 303:
        assert answer.headers["location"].startswith("/")
        assert not answer.headers["location"].startswith("//")


def test_any_job_can_be_looked_at_in_any_list(dashboard, queue):
    """One job of each kind, with as much and as little evidence as there can be."""
    jobs = [queue.make(), queue.make_quarantined(), queue.make_finished()]
    jobs += [queue.make_finished(outcome) for outcome in (Outcome.FAILED, Outcome.CANCELLED)]
    for job in jobs:
        assert dashboard.get(f"/jobs/{job}").status_code == 200
    for state in State:
        assert dashboard.get(f"/jobs?state={state}").status_code == 200
