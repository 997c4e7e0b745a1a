-- The roles of outlive. They belong to the whole cluster, so only `outlive migrate --roles` makes them.
-- None of them can log in: grant them to roles that can.
do $$
declare
  name text;
begin
  foreach name in array
    array['outlive_owner', 'outlive_worker', 'outlive_enqueue', 'outlive_viewer', 'outlive_job',
          'outlive_protocol']
  loop
    if not exists (select from pg_roles where rolname = name) then
      begin
        execute format('create role %I nologin', name);
      exception when duplicate_object or unique_violation then
        null;  -- A migration of another database made it meanwhile.
      end;
    end if;
  end loop;
end $$;
