-- Statements about the people who may log in to the dashboard.

-- name: dashboard_people
-- The people who have a token, with the SHA-256 of each.
select t.id, t.name, t.role, t.hash from outlive.dashboard_tokens t order by t.name;

-- name: list_dashboard_tokens
-- The same for people to read, without what a token could be checked against.
select t.name, t.role, t.created_at from outlive.dashboard_tokens t order by t.name limit :limit::int;

-- name: add_dashboard_token
-- A person gets a token. Zero rows: there is one of that name.
insert into outlive.dashboard_tokens (name, role, hash) values (:name::text, :role::text, :hash::bytea)
on conflict (name) do nothing returning id;

-- name: remove_dashboard_token
-- The token of a person is valid no more, and ends the sessions that it has opened. Zero rows: there was none.
delete from outlive.dashboard_tokens where name = :name::text returning id;
