-- Flushes read this table, and would wait behind this migration while it waits for a backup.
SET LOCAL lock_timeout = '2s';

ALTER TABLE removal ADD COLUMN record json; -- store.Removal, once an attempt has failed

-- Merchants whose events that are past the retention could not be removed at the last attempt.
CREATE TABLE expiry (
	merchant uuid PRIMARY KEY,
	at       timestamptz NOT NULL, -- of the first attempt
	record   json NOT NULL -- store.Removal
);
