-- What a migration asks about a schema of this version or an earlier one, before it changes anything.

-- name: relations
-- The tables, in the order in which readers and an enqueue lock them.
select string_agg(format('outlive.%I', relname), ', ' order by
  array_position(array['tasks', 'dedupe_keys', 'jobs', 'waiting', 'sleepers'], relname::text), relname)
from pg_class where relnamespace = 'outlive'::regnamespace and relkind = 'r';

-- name: longest_user
-- The session that has used tables for the longest time, in words.
select format('%s (process %s of user %s)', coalesce(nullif(application_name, ''), 'a session'), pid, usename)
  || coalesce(', for ' || round(extract(epoch from clock_timestamp() - xact_start)) || ' s', '')
from pg_locks join pg_stat_activity using (pid)
where granted and pid <> pg_backend_pid()
  and database = (select oid from pg_database where datname = current_database())
  and relation in (select oid from pg_class where relnamespace = 'outlive'::regnamespace)
order by xact_start limit 1;

-- name: running_workers
-- The workers that run, in words. A worker runs if its heartbeat is new. One whose heartbeat is late runs if its
-- session holds its lock, or as long as it has a lease: it may be cut off from the database, and run its jobs
-- until the lease ends.
with held as (
  select l.worker, min(k.pid) as pid from outlive.liveness l
  join pg_locks k on l.key = (k.classid::bigint << 32 | k.objid::bigint)
  where k.locktype = 'advisory' and k.objsubid = 1 and k.granted
    and k.database = (select oid from pg_database where datname = current_database())
  group by 1),
leased as (
  select worker, max(lease_until)::timestamptz(0) as until from outlive.running
  where lease_until > now() group by 1),
seen as (
  select id as worker from outlive.workers
  where state in ('active', 'stale', 'draining') and last_seen > now() - interval '1 minute')
select format('%s on %s', k.name, k.hostname) || case
  when seen.worker is not null then ''
  when held.pid is not null then format(' (its heartbeat is late, but its session lives: process %s)', held.pid)
  else format(' (its heartbeat is late, but it has leases until %s)', leased.until) end
from outlive.workers k left join seen on seen.worker = k.id
  left join held on held.worker = k.id left join leased on leased.worker = k.id
where coalesce(seen.worker, held.worker, leased.worker) is not null
order by 1;

-- name: has_roles
-- Whether the roles own this database. They belong to the server: another database may have created them.
select from pg_namespace where nspname = 'outlive' and nspowner = to_regrole('outlive_owner');
