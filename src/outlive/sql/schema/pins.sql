-- Names in a function mean what they mean here, and not what the caller's search_path makes of them. Otherwise a
-- login that may create in one of its schemas, as every login may in `public` of a database made before Postgres
-- 15, could define a count(text) that fits better than the server's own, and it would run with the caller's
-- rights. A function in the standard's form (`return …`, `begin atomic`) needs no pin: its names were looked up
-- when it was made. A migration makes every function again and so runs this again.
do $$
declare
  unpinned regprocedure;
begin
  for unpinned in
    select p.oid from pg_proc p
    where p.pronamespace = 'outlive'::regnamespace and p.prosqlbody is null
      and not 'search_path=pg_catalog, pg_temp' = any(coalesce(p.proconfig, '{}'))
  loop
    execute format('alter function %s set search_path = pg_catalog, pg_temp', unpinned);
  end loop;
end $$;
