"""An app that logs with structlog by way of `logging`, as its documentation has it, and with a handler of Rich."""

import logging

import structlog
from rich.logging import RichHandler

import outlive

shared: list[structlog.typing.Processor] = [structlog.stdlib.add_log_level, structlog.processors.TimeStamper(fmt="iso")]
structlog.configure(
    processors=[*shared, structlog.processors.format_exc_info, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
)
handler = logging.StreamHandler()
handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=[structlog.processors.JSONRenderer()]))
logging.basicConfig(handlers=[handler], level="INFO")
rich = logging.getLogger("rich")
rich.propagate = False
rich.addHandler(RichHandler())
app = outlive.App()


@app.task
def talk(order: int) -> None:
    log = structlog.get_logger("shop")
    log.info("sold 100 %", order=order)
    rich.warning("paid")
    try:
        raise ValueError("no price")
    except ValueError:
        log.exception("failed", order=order)


@app.task
def talk_of_errors() -> None:
    """The exception stays as it was given: nothing has rendered it before the record comes to its handler."""
    formatter = structlog.stdlib.ProcessorFormatter
    log = structlog.wrap_logger(logging.getLogger("shop"), processors=[*shared, formatter.wrap_for_formatter])
    try:
        raise ValueError("no price")
    except ValueError as error:
        caught = error
        log.error("itself", exc_info=error)
        log.error("current", exc_info=True)
        log.error("one", exc_info=1)
    log.error("later", exc_info=caught)
