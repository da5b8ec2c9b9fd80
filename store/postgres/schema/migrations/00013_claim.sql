-- Flushes write to this table, and would wait behind this migration while it waits for a backup.
SET LOCAL lock_timeout = '2s';

ALTER TABLE event ADD COLUMN by_claim boolean NOT NULL DEFAULT false; -- store.Event.ByClaim
