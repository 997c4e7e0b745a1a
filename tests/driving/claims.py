"""When attempts are claimed: their code may begin later, behind others in their worker."""

CLAIMED = """
create table public.claimed (token bigint, source text, at timestamptz);
create function public.note_claim() returns trigger language plpgsql as
  $$ begin insert into public.claimed values (new.token, new.source, new.started_at); return new; end $$;
create trigger note_claim after insert on outlive.running for each row execute function public.note_claim()"""
"""From now on, keep when each attempt was claimed."""
