-- Addresses and user agents of browsers (store.Event.Client).

-- Flushes write to this table, and would wait behind this migration while it waits for a backup.
SET LOCAL lock_timeout = '2s';

ALTER TABLE event ADD COLUMN client bytea; -- encrypted

-- Their keys are lost in a crash, and are not in the write-ahead log, so neither on standbys nor in base backups.
CREATE UNLOGGED TABLE short_key (
	hour bigint PRIMARY KEY, -- since 1970
	key  bytea NOT NULL
);
