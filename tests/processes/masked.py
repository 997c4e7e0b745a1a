"""An app whose formatters mask what must not be logged: structlog's, one that writes JSON itself, and one for text."""

import json
import logging
import logging.config
from typing import Any

import structlog

import outlive


def mask(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {key: "***" if key == "email" else value for key, value in event.items()}


class Json(logging.Formatter):
    """As python-json-logger has it."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {"levelname": record.levelname, "message": record.getMessage()}
        if hasattr(record, "email"):
            said["email"] = "***"
        if record.exc_info:
            said["exc_info"] = self.formatException(record.exc_info).replace("ada@", "***@")
        return json.dumps(said)


class Coloured(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"\x1b[1m{super().format(record).replace('ada@', '***@')}\x1b[0m"


class Whispering(logging.StreamHandler[Any]):
    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("ada@", "***@")


shared: list[structlog.typing.Processor] = [structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()]
shared += [structlog.processors.format_exc_info]
rendering = [mask, structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()]
formatters: dict[str, Any] = {name: {"()": kind} for name, kind in (("json", Json), ("coloured", Coloured))}
formatters["events"] = {
    "()": structlog.stdlib.ProcessorFormatter,
    "processors": rendering,
    "foreign_pre_chain": shared,
}
handlers: dict[str, Any] = {name: {"class": "logging.StreamHandler", "formatter": name} for name in formatters}
handlers["whispered"] = {"()": Whispering}
logging.config.dictConfig(
    {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": formatters,
        "handlers": handlers,
        "root": {"level": "INFO", "handlers": ["events"]},
        "loggers": {name: {"handlers": [name], "propagate": False} for name in ("json", "coloured", "whispered")},
    }
)
structlog.configure(
    processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
)
app = outlive.App()


@app.task
def talk() -> None:
    structlog.get_logger("shop").info("sold", email="ada@example.org", order=7)
    for name in ("shop", "json"):
        logging.getLogger(name).warning("paid", extra={"email": "ada@example.org"})
    for name in ("coloured", "whispered"):
        logging.getLogger(name).warning("paid by ada@example.org", extra={"email": "ada@example.org"})
    try:
        raise ValueError("no such account: ada@example.org")
    except ValueError:
        for name in ("json", "coloured", "whispered"):
            logging.getLogger(name).exception("failed")


@app.task
def fail() -> None:
    try:
        raise ValueError("no price")
    except ValueError:
        structlog.get_logger("shop").exception("failed", order=7)
        logging.getLogger("shop").exception("failed too")
