-- +goose Up

-- Nodes read this row several times a second. They must not wait behind this, which may wait for a backup.
SET LOCAL lock_timeout = '2s';

-- peer is a name for people: a directory may be mounted elsewhere. A database that has moved before has no id here.
ALTER TABLE move ADD COLUMN peer_id text NOT NULL DEFAULT ''; -- out: the id of the store that has the data
