-- Times of events, receipts and remembered event_ids are in microseconds since 1970. Control data is JSON as package store
-- describes it; the columns beside it are what statements search for.

-- Control data. These tables are small, and every node reads them whole.

CREATE TABLE partner (
	id            uuid PRIMARY KEY,
	created       timestamptz NOT NULL,
	tracking      text COLLATE "C" UNIQUE, -- host of the preverified tags
	tracking_root text COLLATE "C",        -- its root domain
	record        json NOT NULL
);
CREATE INDEX ON partner (tracking_root);

CREATE TABLE api_key (
	id      text COLLATE "C" PRIMARY KEY,
	partner uuid NOT NULL REFERENCES partner,
	created timestamptz NOT NULL,
	used    timestamptz,
	record  json NOT NULL
);
CREATE INDEX ON api_key (partner);

-- Sessions of the web console, and the links that begin one.
CREATE TABLE session (
	id      text COLLATE "C" PRIMARY KEY,
	partner text COLLATE "C" NOT NULL, -- empty: of an operator
	created timestamptz NOT NULL,
	at      timestamptz NOT NULL DEFAULT clock_timestamp(),
	record  json NOT NULL
);
CREATE INDEX ON session (partner);

CREATE TABLE merchant (
	id        uuid PRIMARY KEY,
	partner   uuid NOT NULL REFERENCES partner,
	ordinal   bigint NOT NULL, -- in the order of the partner's merchants
	retention int NOT NULL,    -- days; 0: the default, -1: for ever
	record    json NOT NULL,
	UNIQUE (partner, ordinal)
);

CREATE TABLE tag (
	id         text COLLATE "C" PRIMARY KEY,
	merchant   uuid NOT NULL REFERENCES merchant,
	partner    uuid NOT NULL REFERENCES partner,
	type       text NOT NULL,
	created    timestamptz NOT NULL,
	label      text COLLATE "C" UNIQUE,
	unverified timestamptz, -- when the claim of a tag that was never verified becomes free
	record     json NOT NULL,
	UNIQUE (merchant, type)
);
CREATE INDEX ON tag (partner);

-- Which server-side tag has a root domain.
CREATE TABLE claim (
	domain text COLLATE "C" PRIMARY KEY,
	tag    text COLLATE "C" NOT NULL UNIQUE REFERENCES tag
);

-- What calls with an idempotency key have created.
CREATE TABLE reply (
	partner uuid NOT NULL REFERENCES partner,
	key     bytea NOT NULL, -- SHA-256 of the idempotency key
	at      timestamptz NOT NULL DEFAULT clock_timestamp(),
	record  json NOT NULL,
	PRIMARY KEY (partner, key)
);
CREATE INDEX ON reply (partner, at);

CREATE TABLE audit (
	id      bigint PRIMARY KEY,
	at      timestamptz NOT NULL,
	partner uuid,
	record  json NOT NULL
);
CREATE INDEX ON audit (partner, id);

-- What the directories of all nodes have to follow, in the order of the commits.
CREATE TABLE change (
	seq    bigint PRIMARY KEY, -- without gaps
	at     timestamptz NOT NULL DEFAULT clock_timestamp(),
	tx     uuid NOT NULL,      -- of the transaction, to find out whether it was committed
	kind   text NOT NULL,
	record json NOT NULL
);
CREATE INDEX ON change (tx);

-- Merchants that were deleted, and whose events are still to be removed.
CREATE TABLE removal (
	merchant uuid PRIMARY KEY,
	partner  uuid NOT NULL,
	at       timestamptz NOT NULL
);

CREATE TABLE erasure (
	id       text COLLATE "C" PRIMARY KEY,
	merchant uuid NOT NULL,
	at       timestamptz NOT NULL,
	done     boolean NOT NULL,
	record   json NOT NULL
);
CREATE INDEX ON erasure (merchant, at);

CREATE TABLE setting (
	name  text PRIMARY KEY,
	value bigint NOT NULL
);

-- Events. Each key begins with the merchant.

-- The receipt of an event is the number of its flush and its place there. Flushes are numbered in the order of their commits;
-- the number is the time of the flush, or one more than the number before if that is later.
CREATE SEQUENCE receipt;

CREATE TABLE event (
	merchant uuid NOT NULL,
	seq      bigint NOT NULL,
	idx      smallint NOT NULL,
	at       bigint NOT NULL, -- event_time
	bot      boolean NOT NULL,
	tag      text COLLATE "C" NOT NULL,
	name     text COLLATE "C" NOT NULL,
	muid     bytea NOT NULL,
	raw      bytea NOT NULL,
	PRIMARY KEY (merchant, seq, idx)
);
CREATE INDEX event_by_time ON event (merchant, at, seq, idx);
CREATE INDEX event_by_name ON event (merchant, name, at, seq, idx);

-- Remembered event_ids. The key is the beginning of the SHA-256 of name and event_id.
CREATE TABLE dedup (
	merchant uuid NOT NULL,
	key      bytea NOT NULL,
	seen     bigint NOT NULL,
	PRIMARY KEY (merchant, key)
);
CREATE INDEX ON dedup USING brin (seen);

CREATE TABLE link (
	merchant uuid NOT NULL,
	key      bytea NOT NULL, -- store.IdentityKey
	muid     bytea NOT NULL,
	PRIMARY KEY (merchant, key)
);

-- Persons whose events are refused.
CREATE TABLE suppressed (
	merchant uuid NOT NULL,
	key      bytea NOT NULL, -- store.IdentityKey
	PRIMARY KEY (merchant, key)
);

-- How many events there are: in each minute (level 0), hour (1), day (2) and altogether (3), of each name, and of all names
-- together under the empty name.
CREATE TABLE counter (
	merchant uuid NOT NULL,
	level    smallint NOT NULL,
	name     text COLLATE "C" NOT NULL,
	bucket   bigint NOT NULL, -- number of the minute, hour or day since 1970
	tag      text COLLATE "C" NOT NULL,
	bot      boolean NOT NULL,
	n        bigint NOT NULL,
	PRIMARY KEY (merchant, level, name, bucket, tag, bot)
) WITH (fillfactor = 80);

CREATE TABLE usage (
	merchant uuid PRIMARY KEY,
	events   bigint NOT NULL,
	bytes    bigint NOT NULL
) WITH (fillfactor = 80);

-- The flushes of the last hours. merchant is one of merchants, those that have events in it.
CREATE TABLE flush (
	merchant  uuid NOT NULL,
	id        uuid NOT NULL,
	node      uuid NOT NULL,
	seq       bigint NOT NULL, -- 0: this flush must not be committed
	merchants uuid[] NOT NULL,
	PRIMARY KEY (merchant, id)
);
CREATE INDEX ON flush (seq);
