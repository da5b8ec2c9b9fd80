-- What flushes add to the counters: see tally.go.

-- +goose Up

-- Reads of usage, such as those of a backup, must not keep this waiting, with all flushes behind it.
SET LOCAL lock_timeout = '2s';

-- Up to this flush, tally has no rows of the merchant, so that readers pass over what the table
-- still has. While a backup reads the database, the
-- dead rows stay.
ALTER TABLE usage ADD COLUMN folded bigint NOT NULL DEFAULT 0;

-- Events that counter and usage do not have yet, in each minute. Rows are inserted and deleted, never updated.
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

-- Citus moves a shard only if rows that are deleted meanwhile can be told apart.
ALTER TABLE tally REPLICA IDENTITY FULL;
