-- Documents of parts of the service, which no node follows.
CREATE TABLE document (
	kind     text NOT NULL,
	merchant uuid NOT NULL, -- 0: the service's own
	id       text NOT NULL,
	content  bytea NOT NULL,
	at       timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (kind, merchant, id)
);
CREATE INDEX document_by_merchant ON document (merchant);
