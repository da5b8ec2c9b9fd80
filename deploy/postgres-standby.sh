#!/bin/bash
# Starts a standby (compose.yaml). The first time it copies the primary.
set -eu
PGDATA=${PGDATA:-/var/lib/postgresql/data}
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	find "$PGDATA" -mindepth 1 -delete # what a copy that was cut off has left
	chown postgres:postgres "$PGDATA"
	chmod 0700 "$PGDATA"
	PGPASSWORD=$(cat /run/secrets/replication-password) gosu postgres pg_basebackup --pgdata "$PGDATA" --write-recovery-conf --checkpoint fast \
		--dbname "host=primary user=replicator application_name=standby sslmode=verify-full sslrootcert=/run/secrets/database.crt"
	# Once promoted, it must not wait for a standby of its own name.
	echo "synchronous_standby_names = ''" >> "$PGDATA/postgresql.auto.conf"
fi
exec docker-entrypoint.sh postgres
