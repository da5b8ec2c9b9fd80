#!/bin/bash
# Runs once, when the image of PostgreSQL has made the cluster (compose.yaml). Most settings count from its next start on, which
# follows at once: only then do commits wait for the standby.
set -eu
psql --username "$POSTGRES_USER" --set ON_ERROR_STOP=1 <<'SQL'
\set password `cat /run/secrets/database-password`
CREATE ROLE mtagd LOGIN PASSWORD :'password';
CREATE DATABASE mtagd OWNER mtagd;
\set password `cat /run/secrets/replication-password`
CREATE ROLE replicator LOGIN REPLICATION PASSWORD :'password';
ALTER SYSTEM SET ssl = on;
ALTER SYSTEM SET ssl_cert_file = '/run/secrets/database.crt';
ALTER SYSTEM SET ssl_key_file = '/run/secrets/database.key';
ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (standby)';
ALTER SYSTEM SET wal_keep_size = '1GB';
ALTER SYSTEM SET max_slot_wal_keep_size = '4GB';
SQL
cat > "$PGDATA/pg_hba.conf" <<'HBA'
local    all          postgres             peer
hostssl  mtagd        mtagd       samenet  scram-sha-256
hostssl  replication  replicator  samenet  scram-sha-256
HBA
