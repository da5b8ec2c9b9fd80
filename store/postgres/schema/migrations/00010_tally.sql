-- Flushes insert what they count into the table tally, instead of updating the counters: see tally.go.

-- All flushes wait behind this migration while it waits for a read of usage, such as that of a backup.
SET LOCAL lock_timeout = '2s';

-- Up to this flush, tally has no rows of the merchant. Readers begin after it, and so skip dead rows, which stay in the table
-- while a backup reads the database.
ALTER TABLE usage ADD COLUMN folded bigint NOT NULL DEFAULT 0;

-- How many events there are in each minute that counter and usage do not have yet. Rows are inserted and deleted, never updated.
CREATE TABLE tally (
	merchant uuid NOT NULL,
	seq      bigint NOT NULL, -- of the flush
	minute   bigint NOT NULL, -- number of the minute since 1970
	name     text COLLATE "C" NOT NULL,
	tag      text COLLATE "C" NOT NULL,
	bot      boolean NOT NULL,
	n        bigint NOT NULL,
	bytes    bigint NOT NULL  -- what they add to usage
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX ON tally (merchant, seq);

-- Citus moves a shard while rows are deleted only if the table has a replica identity. There is no primary key.
ALTER TABLE tally REPLICA IDENTITY FULL;
