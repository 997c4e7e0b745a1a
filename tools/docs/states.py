"""docs/reference/states.md: the table of transitions and their diagram, made from `outlive.states`."""

from outlive.states import TRANSITIONS, State


def as_markdown() -> str:
    """docs/reference/states.md."""
    arrows: dict[tuple[State | None, State | None], dict[str, None]] = {}
    for t in TRANSITIONS:
        for before in t.before:
            arrows.setdefault((before, t.after), {})[t.event] = None
    diagram = [f"    {a or '[*]'} --> {b or '[*]'}: {', '.join(events)}" for (a, b), events in arrows.items()]
    rows = [
        f"| {t.event} | {', '.join(map(_name, t.before))} | {_name(t.after)} | `{t.statement}` | {t.when} |"
        for t in TRANSITIONS
    ]
    return _PAGE.format(diagram="\n".join(diagram), rows="\n".join(rows))


def _name(state: State | None) -> str:
    return state or "(none)"


_PAGE = """\
# States

Made from `src/outlive/states.py`, against which the tests hold the SQL; `./run docs --generate` writes this page.

```mermaid
stateDiagram-v2
{diagram}
```

| event | from | to | statement | when |
|---|---|---|---|---|
{rows}

An event that the table does not list for a state changes nothing. A running job that an operator cancels
becomes cancelled when its attempt ends without a result. Suspects are claimed by `claim_suspect`, all others by
`end_and_claim`. A suspect shows as pending; it waits in `held`,
and can't be blocked. A job that waits for other jobs shows as blocked. Any statement that ends these jobs
unblocks it, in the same transaction: also the reaper's, or a cancel.
"""
