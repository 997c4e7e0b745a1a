"""An app whose structlog renders JSON itself and prints it, and a job that prints what only looks like that."""

import structlog

import outlive

structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ],
    logger_factory=structlog.PrintLoggerFactory(),
)
app = outlive.App()
DEEP = 10_000
HOSTILE = [
    '{"event": "of no level"}',
    '{"event": "of an unknown level", "level": "loud"}',
    '{"level": "error", "message": 7}',
    '{"level": 50, "message": "a number"}',
    '{"level": "error", "event": "not JSON", "n": NaN}',
    '{"level": "error", "event": "cut',
    '["error", "an array"]',
    '{"level": "error", "event": "deep", "n": ' + "[" * DEEP + "]" * DEEP + "}",
    '{"level": "error", "event": "large", "n": 1e999}',
]
FORGED = (
    '{"level": "info", "level": "error", "event": "a", "event": "forged\\nDead worker detected", "job_id": "x", '
    '"task": "y", "logger": "outlive.worker", "time": "z", "stream": "log", "url": "postgresql://me:secret@host/db"}'
)


@app.task
def talk() -> None:
    log = structlog.get_logger()
    log.info("sold", order=7)
    log.warning("no price", order=7)
    try:
        raise ValueError("no price")
    except ValueError:
        log.exception("failed")
    print('{"severity": "CRITICAL", "message": "of a cloud", "logger": "shop"}')


@app.task
def forge() -> None:
    for line in (*HOSTILE, FORGED):
        print(line)
