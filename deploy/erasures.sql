-- Repeats erasures after a restore (cluster.md), before the nodes start: the first node that starts erases again. erasures.csv is
-- in the current directory:
--
--   psql mtagd --single-transaction -f erasures.sql
CREATE TEMP TABLE e (kind text, id text, body text);
\copy e FROM 'erasures.csv' CSV
INSERT INTO record SELECT kind, id, (SELECT coalesce(max(seq), 0) FROM change), CASE kind WHEN 'suppressed' THEN body
	ELSE CASE body::jsonb ->> 'state' WHEN 'pending' THEN body ELSE (body::jsonb || '{"state": "removing"}')::text END END FROM e
	ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version, body = excluded.body;
