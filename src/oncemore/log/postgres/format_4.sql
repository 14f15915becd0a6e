-- Format 4: the index of failed and held heads that SQLite has (docs/adr/0073). A run that succeeds never
-- touches it. {schema} is filled in when it is run.
create index head_failed on {schema}.head(kind, state, seq) where state in ('HARD_FAIL', 'HELD');
