"""The storage contract: one verb per transition.

A verb runs nothing. It returns a `Statement[T]`: the text, its parameters, and how its rows become a `T`. So sync and
async callers share it: `db.run(connection, store.cancel(ids))` and `await db.arun(…)` both return a `list[Change]`.

There is one module for each file of sql/statements. What a verb changes, and what zero rows mean, is said there, above
the statement, and not again here. Python never sends "now".
"""

from outlive.store.attempts import *
from outlive.store.audit import *
from outlive.store.batches import *
from outlive.store.charts import *
from outlive.store.finding import *
from outlive.store.jobs import *
from outlive.store.killers import *
from outlive.store.lanes import *
from outlive.store.leftovers import *
from outlive.store.output import *
from outlive.store.people import *
from outlive.store.reads import *
from outlive.store.results import *
from outlive.store.schedules import *
from outlive.store.sources import *
from outlive.store.statements import asked_by_job as asked_by_job
from outlive.store.statements import declared, is_declaration
from outlive.store.steps import *
from outlive.store.verify import *
from outlive.store.waits import *
from outlive.store.watchers import *
from outlive.store.workers import *

for _name, _found in [*globals().items()]:
    if is_declaration(_found):
        globals()[_name] = declared(_found)
