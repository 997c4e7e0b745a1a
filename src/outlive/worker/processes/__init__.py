"""The processes below the supervisor, and the jobs that each has. Nothing here knows of the database."""
