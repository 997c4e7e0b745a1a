"""Orders: a FastAPI app that enqueues in the transaction of each request. See README.md."""
