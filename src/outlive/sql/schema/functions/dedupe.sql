-- Dedupe keys: of the unfinished jobs of a task, at most one has a given key.
--
--     1. The primary key of `dedupe_keys`, task and key, decides. Its row names the job that holds the key: it is
--        written before that job, and deleted when the job is finished.
--     2. A new job whose key is held is not made: `skip` returns the holder instead, `raise` raises OL001.
--        `replace` cancels a holder that waits or is blocked; one that runs, is quarantined or a suspect stays.
--     3. A call that is repeated finds the job or the key that it has made, and changes nothing.
--     4. Two calls never deadlock: each takes its keys in their order, and locks the jobs that it may replace, by
--        id, before the first key. If another job took a key after that, the call starts again (OL004).

create or replace function outlive.dedupe(
  ids uuid[], tasks text[], keys text[], on_conflicts text[],
  out not_made uuid[], out holders uuid[], out replaced uuid[], out replacing uuid[])
language plpgsql as $$
-- Take the keys of new jobs. Returns the jobs that can't have theirs, each with the job that holds it, and the
-- jobs that were replaced, each with the new one.
declare
  replaceable uuid[] := '{}';
begin
  if array_position(on_conflicts, 'replace') is null then  -- No order can be wrong: the cost of a block is saved.
    select t.* into not_made, holders, replaced, replacing
    from outlive.take_keys(ids, tasks, keys, on_conflicts, replaceable) t;
    return;
  end if;
  for try in 1..100 loop
    begin
      replaceable := array(
        select k.id from unnest(tasks, keys, on_conflicts) a(task, key, on_conflict)
          join outlive.dedupe_keys k on k.task = a.task and k.key = a.key
        where a.on_conflict = 'replace');
      replaceable := array(  -- With the jobs that wait for them: take_along changes their rows.
        select j.id from outlive.jobs j where j.id = any(replaceable || array(
          select d.job_id from outlive.dependencies d where d.needs = any(replaceable) and not d.met))
        order by j.id for no key update);
      select t.* into not_made, holders, replaced, replacing
      from outlive.take_keys(ids, tasks, keys, on_conflicts, replaceable) t;
      return;
    exception when sqlstate 'OL004' then  -- This has given all locks and keys back.
    end;
  end loop;
  raise exception using errcode = '40001', message = 'the jobs with these dedupe keys change too fast: try again';
end $$;

create or replace function outlive.take_keys(
  ids uuid[], tasks text[], keys text[], on_conflicts text[], replaceable uuid[],
  out not_made uuid[], out holders uuid[], out replaced uuid[], out replacing uuid[])
language plpgsql as $$
-- Take the keys one by one, and settle conflicts by on_conflict.
declare
  job record;
  holder uuid;
begin
  select '{}', '{}', '{}', '{}' into not_made, holders, replaced, replacing;
  for job in
    select a.* from unnest(ids, tasks, keys, on_conflicts) with ordinality a(id, task, key, on_conflict, at)
    where a.key is not null order by a.task collate "C", a.key collate "C", a.at
  loop
    loop
      exit when exists (select from outlive.jobs j where j.id = job.id);
      insert into outlive.dedupe_keys values (job.task, job.key, job.id) on conflict do nothing;
      exit when found or exists (select from outlive.dedupe_keys k where k.id = job.id);
      select k.id into holder from outlive.dedupe_keys k where k.task = job.task and k.key = job.key;
      continue when not found;
      if job.on_conflict = 'raise' then
        raise exception using errcode = 'OL001', detail = holder, message =
          format('job %s of task %s has the dedupe key %L and is not finished', holder, job.task, job.key);
      elsif job.on_conflict = 'replace' and outlive.state_of(holder) is distinct from 'running' then
        -- The jobs of this batch are new: no other transaction can have locked them.
        if holder <> all(replaceable) and holder <> all(ids) then
          raise exception using errcode = 'OL004', message = 'a job took its dedupe key meanwhile';
        end if;
        if outlive.replace(holder, job.id) then
          replaced := replaced || holder;
          replacing := replacing || job.id;
        end if;
        continue when not exists (select from outlive.dedupe_keys k where k.id = holder);
      end if;
      not_made := not_made || job.id;
      holders := holders || holder;
      exit;
    end loop;
  end loop;
end $$;

create or replace function outlive.replace(holder uuid, by uuid) returns boolean language plpgsql as $$
-- pending, retryable, blocked -> cancelled. Returns whether it was replaced. A running job stays, because no work
-- is thrown away. A quarantined job and a suspect stay, because their kills would be forgotten. What follows from
-- the cancel waits until the new job is made: outlive.link.
declare
  w record;
begin
  perform from outlive.jobs j where j.id = holder for no key update;
  w := outlive.take_unclaimed(holder);
  if w.id is null then
    delete from outlive.held t where t.id = holder and t.why in ('blocked', 'dependent') returning t.* into w;
  end if;
  if w.id is not null then
    perform outlive.finish_unclaimed(
      array[holder], array[w.attempt], array[w.failures], array[w.crashes], array[w.losses],
      array[format('replaced by job %s, which has its dedupe key', by)]);
  end if;
  return w.id is not null;
end $$;
