-- All links that an identifier has had, the one in link included. Nobody knows who has made those of earlier versions: they are claimed.
-- Nodes of the version before write only to link: what they write counts as claimed, too.
CREATE TABLE held_link (
	merchant uuid NOT NULL,
	key      bytea NOT NULL, -- store.IdentityKey
	muid     bytea NOT NULL,
	source   smallint NOT NULL, -- store.LinkSource
	PRIMARY KEY (merchant, key, muid)
);
INSERT INTO held_link (merchant, key, muid, source) SELECT merchant, key, muid, 0 FROM link;

-- The muids that an identifier was linked to: the first 16 bytes of store.MUIDKey.
CREATE TABLE linked_muid (
	merchant uuid NOT NULL,
	hash     bytea NOT NULL,
	PRIMARY KEY (merchant, hash)
);
INSERT INTO linked_muid (merchant, hash) SELECT DISTINCT merchant, substring(sha256('\xff'::bytea || muid) FOR 16) FROM link;
