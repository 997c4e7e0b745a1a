"""The storage contract: one verb per transition, each a `Statement` that sync and async callers run alike.

One module for each file of sql/statements, which explains every verb: what it changes, and what zero rows mean. A verb
without a body is its signature (`decoded_by`). Rows become data here. Python never sends "now".
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
from outlive.store.steps import *
from outlive.store.workers import *
