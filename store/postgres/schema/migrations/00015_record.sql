-- All control data but the audit log is in one table of records, whose rules package rules has.

-- Nodes read and change these tables, and would wait behind this migration while it waits for a backup.
SET LOCAL lock_timeout = '2s';

-- lockControl: no change of the version before is under way.
SELECT pg_advisory_xact_lock(x'6d746701'::int);

CREATE TABLE record (
	kind    text COLLATE "C" NOT NULL,
	id      text COLLATE "C" NOT NULL,
	version bigint NOT NULL, -- the number of the change (change.seq) that has written it last
	body    text,            -- NULL: it was deleted, and stays for nodes that do not know that yet
	PRIMARY KEY (kind, id)
);
CREATE INDEX ON record (version);

INSERT INTO record (kind, id, version, body)
SELECT r.kind, r.id, (SELECT coalesce(max(seq), 0) FROM change), r.body FROM (
	SELECT 'meta' AS kind, 'retention' AS id, value::text AS body FROM setting WHERE name = 'retention'
	UNION ALL SELECT 'partners', id::text, record::text FROM partner
	UNION ALL SELECT 'keys', id, record::text FROM api_key
	UNION ALL SELECT 'uses', id, to_char(used AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM api_key WHERE used IS NOT NULL
	UNION ALL SELECT 'sessions', id, record::text FROM session
	UNION ALL SELECT 'merchants', id::text, left(rtrim(record::text), -1) || ',"ordinal":' || ordinal || '}' FROM merchant
	UNION ALL SELECT 'tags', id, record::text FROM tag
	UNION ALL SELECT 'domains', domain, tag FROM claim
	UNION ALL SELECT 'replies', partner::text || '/' || encode(key, 'hex'),
		'{"partnerId":"' || partner || '","key":"' || encode(key, 'hex') || '",' || substr(ltrim(record::text), 2) FROM reply
	UNION ALL SELECT 'removals', merchant::text, coalesce(record::text, '{"kind":"deletion","merchantId":"' || merchant || '","partnerId":"' || partner ||
		'","at":"' || to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '","state":"pending"}') FROM removal
	UNION ALL SELECT 'expiries', merchant::text, record::text FROM expiry
	UNION ALL SELECT 'erasures', id, record::text FROM erasure
	UNION ALL SELECT 'suppressed', merchant::text || '/' || encode(key, 'hex'), '' FROM suppressed
) AS r;

-- Nodes of the version before go on to record events and to answer from the tables as they are. They must change nothing here, where no node
-- of this version would see it, and remove no events by a retention that may be changed: so for them nothing is past its retention. With
-- the first change of this version they are not ready any more. The next version drops these tables.
UPDATE merchant SET retention = -1;
UPDATE setting SET value = -1 WHERE name = 'retention';
ALTER TABLE change ADD CONSTRAINT of_records CHECK (kind = 'records') NOT VALID;
ALTER TABLE partner ADD CONSTRAINT unused CHECK (false) NOT VALID;
ALTER TABLE api_key ADD CONSTRAINT unused CHECK (false) NOT VALID;
ALTER TABLE session ADD CONSTRAINT unused CHECK (false) NOT VALID;
ALTER TABLE merchant ADD CONSTRAINT unused CHECK (false) NOT VALID;
ALTER TABLE tag ADD CONSTRAINT unused CHECK (false) NOT VALID;
ALTER TABLE claim ADD CONSTRAINT unused CHECK (false) NOT VALID;
ALTER TABLE reply ADD CONSTRAINT unused CHECK (false) NOT VALID;
ALTER TABLE removal ADD CONSTRAINT unused CHECK (false) NOT VALID;
ALTER TABLE expiry ADD CONSTRAINT unused CHECK (false) NOT VALID;
ALTER TABLE erasure ADD CONSTRAINT unused CHECK (false) NOT VALID;
ALTER TABLE suppressed ADD CONSTRAINT unused CHECK (false) NOT VALID;
