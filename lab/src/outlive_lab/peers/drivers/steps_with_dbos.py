"""DBOS: a workflow of steps that do nothing, in the process that calls it. Executed by path, with their number."""

import json
import sys
import time

import shared
from dbos import DBOS

DBOS(config={"name": "steps", "system_database_url": shared.POSTGRES, "log_level": "WARNING"})


@DBOS.step()
def step(number: int) -> int:
    return number


@DBOS.workflow()
def steps(count: int) -> list[float]:
    times = [time.perf_counter()]
    for number in range(count):
        step(number)
        times.append(time.perf_counter())
    return times


DBOS.launch()
print(json.dumps(steps(int(sys.argv[1]))))
DBOS.destroy()
