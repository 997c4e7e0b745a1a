"""An operator lets a worker import its code again, from afar."""

from pathlib import Path

from tests.driving.commands import Cli
from tests.processes.changing import source
from tests.waiting import eventually


def test_a_worker_reloads_from_afar_and_says_if_it_keeps_the_old_code(start, changing, queue, database_url, tmp_path):
    name, path, cli = changing.__name__, Path(changing.__file__), Cli(database_url)
    start(target=f"{name}:app", folder=tmp_path, slots=1, name="web-7")
    path.write_text("import no_such_module\n")
    failed = cli("reload", "web-7")
    assert (failed.code, failed.out) == (1, "worker web-7 is told to reload\n")
    assert failed.err.startswith(f"outlive: web-7 keeps the old code: {name}.py, line 1: ModuleNotFoundError")
    assert f"web-7 has old code: {name}.py, line 1: ModuleNotFoundError" in cli("workers").out
    assert f"worker web-7 has old code, because its reload failed: {name}.py" in cli("doctor").out
    assert changing.version.enqueue().result(timeout=20) == 1
    path.write_text(source(version=2))
    assert cli("reload").out == "worker web-7 is told to reload\n1 worker has reloaded\n"
    assert changing.version.enqueue().result(timeout=20) == 2
    assert queue.values("select reload_error from outlive.workers") == [None]
    assert queue.values("select distinct action from outlive.audit") == ["reload worker"]
    path.write_text(source(version=3))
    assert changing.app.worker("web-7").reload()
    eventually(lambda: changing.version.enqueue().result(timeout=20) == 3, within_s=20)
    assert not changing.app.worker("web-8").reload()


def test_a_worker_that_is_not_there_is_named(database_url):
    cli = Cli(database_url)
    unknown = cli("reload", "web-8")
    assert (unknown.code, unknown.err) == (1, "outlive: no worker web-8 is alive; these are: no worker at all\n")
    assert cli("reload").err == "outlive: no worker is alive\n"
