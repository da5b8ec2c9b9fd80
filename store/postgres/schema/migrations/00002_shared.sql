-- What nodes share besides the service's data: see store.Shared.

-- Certificates, their keys, the ACME account, and challenges of the CA.
CREATE TABLE file (
	path     text COLLATE "C" PRIMARY KEY,
	modified timestamptz NOT NULL,
	content  bytea NOT NULL
);

CREATE TABLE lease (
	name    text COLLATE "C" PRIMARY KEY,
	holder  uuid NOT NULL,
	expires timestamptz NOT NULL
);
