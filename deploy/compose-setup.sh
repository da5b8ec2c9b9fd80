#!/bin/bash
# Makes what compose.yaml needs, in secrets/ and .env: passwords, and the certificate that both database servers show. It is its own
# CA, so there is no other key to keep. Arguments: the base host, the client tag host, and the CNAME target. Run it as root: each file
# gets the user of the image that reads it.
set -eu
cd "$(dirname "$0")"
mkdir secrets # fails if they exist
printf 'BASE_HOST=%s\nCLIENT_TAG_HOST=%s\nCNAME_TARGET=%s\n' "$1" "$2" "$3" > .env
cd secrets
umask 077
for name in database-password replication-password admin-token; do
	openssl rand -hex 32 | tr -d '\n' > $name
done
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=database \
	-addext subjectAltName=DNS:primary,DNS:standby -keyout database.key -out database.crt 2> /dev/null
printf 'store: postgres://mtagd:%s@primary,standby/mtagd?sslmode=verify-full&sslrootcert=/run/secrets/database.crt\nadmin-token: %s\n' \
	"$(cat database-password)" "$(cat admin-token)" > mtagd.yaml
chmod 644 database.crt
chown 65532 mtagd.yaml
chown 999 database-password replication-password database.key
