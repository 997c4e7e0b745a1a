-- Every migration makes the views again, because their columns may have changed.
do $$
declare
  name text;
begin
  for name in select viewname from pg_views where schemaname = 'outlive' loop
    execute format('drop view if exists outlive.%I cascade', name);
  end loop;
end $$;
