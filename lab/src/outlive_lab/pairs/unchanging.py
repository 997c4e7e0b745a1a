"""The statements that change no job's state, and no right to one. A test finds a statement that is in no list."""

UNCHANGING = frozenset(
    {
        # They read.
        *("inputs", "ended", "next_tries", "lost_runs", "held_attempts", "tokens_of", "arguments", "cancels"),
        *("kept_by_jobs", "list_audit", "batch_counts", "batch_done", "batch", "list_batches", "batch_of"),
        *("ends_by_step", "times_by_step", "find_jobs", "jobs_with_prefix", "batches_with_prefix", "suspects_wait"),
        *("unsourced_lanes", "sourced_lanes", "watched", "dashboard_people", "list_dashboard_tokens", "statuses"),
        *("job_progress", "outcomes", "job", "linked_jobs", "list_attempts", "list_jobs", "unfinished"),
        *("unserved_lanes", "list_stuck", "count_unmet", "count_stuck", "list_killers", "group_killers"),
        *(
            "list_running",
            "list_workers",
            "limited_roles",
            "list_queues",
            "queues_with_rates",
            "list_sources",
            "list_records",
        ),
        *("count_jobs", "list_tasks", "task", "list_lanes", "rates", "metrics", "latencies", "health", "lock_holders"),
        *("job_health", "clock", "schema_version", "awaited_ends", "orphaned_schedules", "due_schedules"),
        *("list_schedules", "source_limits", "kept_steps", "steps_of", "list_steps", "step", "verify_jobs"),
        *("verify_keys", "verify_batches", "tick", "rival_tasks", "absent", "slowest", "place", "inputs_of", "watch"),
        *("blocks_itself", "taken_over_tasks", "longest_jobs", "group_errors", "job_infos", "rival_sources"),
        *("schedule_infos", "signature", "queue_info"),
        # They write what no job's state depends on.
        *("add_evidence", "write_progress", "write_audit", "prune_audit", "open_batch", "prune_batches"),
        *("make_room", "end_room", "untold_killers", "crashing_tasks", "prune_crashes", "sleep", "wake"),
        *("write_output", "prune_watched", "add_dashboard_token", "remove_dashboard_token", "write_some"),
        *("await_jobs", "prune_awaited", "declare_schedules", "check_schedules", "resume_schedule"),
        *("reset_schedule", "prune_schedules", "note_trouble", "add_schedule", "set_schedule", "register_sources"),
        *("spread_limits", "breakers", "remove_source", "prune_unused", "take_seat", "keep_seat", "leave_crowd"),
        *("register_tasks", "tell_tasks", "drain_workers", "set_worker", "reload_workers", "hold_liveness_lock"),
        *("note_missed", "untold_deaths", "try_lock", "unlock", "prune_workers", "locked_ends"),
    }
)
