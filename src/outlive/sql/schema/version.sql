-- The version of the schema in this folder; upgrades/ says how to get here from earlier ones.
insert into outlive.schema_version (version) values (2);
