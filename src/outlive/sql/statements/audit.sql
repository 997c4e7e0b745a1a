-- Statements about what operators do.
-- call: act(:verb::text, :ids::uuid[], :who::text, :what::jsonb, :entry::uuid)
-- call: write_audit(:entry::uuid, :who::text, :action::text, :what::jsonb, :jobs::bigint)

-- name: list_audit
-- What operators have done, the newest first, up to an entry; null stands for the newest.
select a.id, a.at, a.who, a.action, a.what, a.jobs from outlive.audit a
where :past::uuid is null or (a.at, a.id) < (select p.at, p.id from outlive.audit p where p.id = :past::uuid)
order by a.at desc, a.id desc limit :limit::int;

-- name: prune_audit
-- Delete entries that are old enough.
delete from outlive.audit a where a.at < outlive.now() - :keep_s::double precision * interval '1 second';
