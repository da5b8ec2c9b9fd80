-- +goose Up

-- Records of parts of the service.
CREATE TABLE document (
	kind     text NOT NULL,
	merchant uuid NOT NULL, -- 0: the service's own
	id       text NOT NULL,
	content  bytea, -- NULL: it was deleted
	changed  bigint NOT NULL, -- from document_changed; 0: nodes do not follow it
	at       timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (kind, merchant, id)
);
CREATE INDEX document_by_change ON document (kind, changed) WHERE changed > 0;
CREATE INDEX document_by_merchant ON document (merchant);
CREATE SEQUENCE document_changed;
