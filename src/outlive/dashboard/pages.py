"""The pages of the dashboard, with their addresses."""

from outlive.dashboard import actions, jobs, lists, overview
from outlive.dashboard.visits import Page

PAGES = (
    Page("/", "overview.html", overview.look),
    Page("/jobs", "jobs.html", jobs.look),
    Page("/jobs/{id}", "job.html", jobs.look_at_one),
    Page("/tasks", "tasks.html", lists.tasks),
    Page("/killers", "killers.html", lists.killers),
    Page("/workers", "workers.html", lists.workers),
    Page("/queues", "queues.html", lists.queues),
    Page("/sources", "sources.html", lists.sources),
    Page("/schedules", "schedules.html", lists.schedules),
    Page("/batches", "batches.html", lists.batches),
    Page("/batches/{id}", "batch.html", lists.batch),
    Page("/audit", "audit.html", lists.audit),
    Page("/confirm", "confirm.html", actions.confirm, live=False),
)
