"""Absurd: a task of steps that do nothing, in its worker. Executed by path, with their number."""

import json
import subprocess
import sys
import time
from pathlib import Path

import shared
from absurd_sdk import Absurd

subprocess.run([Path(sys.executable).with_name("absurdctl"), "init", "-d", shared.POSTGRES], check=True, stdout=2)
app = Absurd(shared.POSTGRES)
app.create_queue()
taken: list[float] = []


@app.register_task("steps")
def steps(count, context):
    taken.append(time.perf_counter())
    for number in range(count):
        context.step(f"step-{number}", lambda number=number: number)
        taken.append(time.perf_counter())


app.spawn("steps", int(sys.argv[1]))
app.work_batch()
print(json.dumps(taken))
