"""Code that tests of several folders share.

- `workers`: real worker processes. `forking` starts them without their imports.
- `jobs`: questions about jobs that were enqueued through the client.
- `making`: jobs in a particular state, made with the store's statements.
- `hand`: a worker's part, played by a test.
- `commands`: the command line.
- `databases`: databases on the server of the test run.

The fixtures are in the conftest modules. A test makes its jobs through the client, as an app does, or with `making`.
"""
