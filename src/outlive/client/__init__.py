"""The client: declare tasks, enqueue jobs, see how they stand. It knows the store, and no worker."""
