-- Watchers: the few workers that look after all others (worker/fleet/seat.py).
--
--     vacant   whether a seat is free to be taken
--     crowded  whether a seat is better left to a worker of another host

create or replace function outlive.vacant(s outlive.watchers) returns boolean language sql volatile
-- Whether the watcher of this seat is gone: its term has ended, or its lock can be had, which the server releases
-- when its session ends. To try one lock costs the same in a fleet of any size. A term that ends much later than
-- it could was written before the clock was set back.
return s.until not between outlive.now() and outlive.now() + interval '10 seconds'
  or coalesce(pg_try_advisory_xact_lock_shared(s.key), false);

create or replace function outlive.crowded(me uuid, below int) returns boolean language sql volatile
-- Whether a watcher with a seat below this one is on the host of this worker, while a host that has workers has no
-- watcher. Workers in other languages are no watchers.
return exists (
    select from outlive.watchers s join outlive.workers k on k.id = s.worker
      join outlive.workers m on m.hostname = k.hostname
    where m.id = me and s.worker <> me and s.seat < below and not outlive.vacant(s))
  and exists (
    select from outlive.workers o
    where o.state = 'active' and o.app is not null and o.hostname not in (
      select k.hostname from outlive.watchers s join outlive.workers k on k.id = s.worker
      where not outlive.vacant(s)));
