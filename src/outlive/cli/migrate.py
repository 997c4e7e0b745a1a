"""migrate: brings the database to the schema of this version, checks it, or prints the SQL for it."""

from typing import Annotated

import typer

from outlive import db, search_path
from outlive import migrate as migrations
from outlive import sql as statements
from outlive.cli import screen
from outlive.cli.command import CommandContext, app, command
from outlive.errors import ConfigError


@command(app, example="migrate --check")
def migrate(
    context: CommandContext,
    check: Annotated[
        bool, typer.Option("--check", help="Only check: exit code 5 if the schema is another version.")
    ] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Only print the SQL for an empty database.")] = False,
    roles: Annotated[bool, typer.Option("--roles", help="Create the roles too; they belong to the server.")] = False,
) -> None:
    """Bring the database to the schema of this version. Safe to repeat, and to run several times at once."""
    if check and (sql or roles):
        raise ConfigError("--check changes and prints nothing: use it without --sql and --roles")
    if sql:
        more = ("schema/roles.sql", "schema/grants.sql") if roles else ()
        pin = f"set search_path = {search_path.TRUSTED};"
        print("\n".join([pin, migrations.script(), *(statements.read(path) for path in more)]), flush=True)
        return
    connection = context.connection
    with db.translated_errors():
        if check:
            migrations.check(connection, context.config.database_url)
            before = after = migrations.VERSION
        else:
            before, after = migrations.migrate(connection, roles=roles)
        now = migrations.installed(connection)
    did = f"schema version {now}" if before == after else f"schema version {before or 'none'} is now {after}"
    screen.say(f"{did}{'; the roles exist' if roles else ''}")
