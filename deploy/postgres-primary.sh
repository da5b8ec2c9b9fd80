#!/bin/bash
# Runs once, when the image of PostgreSQL has made the database (compose.yaml). The settings count from its next start on, which
# follows at once: only then do commits wait for the standby.
set -eu
echo "host replication $POSTGRES_USER samenet scram-sha-256" >> "$PGDATA/pg_hba.conf"
psql --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --set ON_ERROR_STOP=1 <<'SQL'
ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (standby)';
ALTER SYSTEM SET wal_keep_size = '1GB';
ALTER SYSTEM SET max_slot_wal_keep_size = '4GB';
SQL
