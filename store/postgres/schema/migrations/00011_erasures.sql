-- Nodes read this table when they remove events, and would wait behind this migration while it waits for a backup.
SET LOCAL lock_timeout = '2s';

CREATE INDEX erasure_open ON erasure (at) WHERE NOT done;
