"""migrate: bring the database to the schema of this version, look whether it has it, or print what would do it."""

from typing import Annotated

import typer

from outlive import db
from outlive import migrate as migrations
from outlive import sql as statements
from outlive.cli import screen
from outlive.cli.command import CommandContext, app, command
from outlive.errors import ConfigError


@command(app)
def migrate(
    context: CommandContext,
    check: Annotated[bool, typer.Option("--check", help="Only look: exit code 5 if the schema is another.")] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Only print the script for an empty database.")] = False,
    roles: Annotated[bool, typer.Option("--roles", help="Make the roles too; they belong to the cluster.")] = False,
) -> None:
    """Bring the database to the schema of this version. Safe to repeat, and for many at once."""
    if check and (sql or roles):
        raise ConfigError("--check only looks: it goes with neither --sql nor --roles")
    if sql:
        more = ("schema/roles.sql", "schema/grants.sql") if roles else ()
        print("\n".join([migrations.script(), *(statements.read(path) for path in more)]), flush=True)
        return
    connection = context.bare_connection
    with db.translated_errors():
        if check:
            migrations.check(connection)
            before = after = migrations.VERSION
        else:
            before, after = migrations.migrate(connection, roles=roles)
    did = f"schema version {after}" if before == after else f"schema version {before or 'none'} is now {after}"
    screen.say(f"{did}{'; the roles are there' if roles else ''}")
