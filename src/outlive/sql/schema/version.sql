-- The version of the schema in this folder, and the earliest one whose workers and clients can work with it;
-- upgrades/ says how to get here from earlier ones.
insert into outlive.schema_version (version, serves) values (2, 2);
