-- Nodes read this table several times a second, and would wait behind this migration while it waits for a backup.
SET LOCAL lock_timeout = '2s';

-- peer is only a name for people: it changes when a directory is mounted elsewhere. '' if the data has moved out before this migration.
ALTER TABLE move ADD COLUMN peer_id text NOT NULL DEFAULT ''; -- out: the id of the store that has the data
