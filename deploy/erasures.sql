-- Repeats erasures after a restore (cluster.md), before the nodes start: the first node that starts erases again. erasures.csv and
-- suppressed.csv are in the current directory:
--
--   psql mtagd --single-transaction -f erasures.sql
CREATE TEMP TABLE e (id text, merchant uuid, at timestamptz, record json);
CREATE TEMP TABLE s (merchant uuid, key bytea);
\copy e FROM 'erasures.csv' CSV
\copy s FROM 'suppressed.csv' CSV
INSERT INTO suppressed SELECT * FROM s ON CONFLICT DO NOTHING;
INSERT INTO erasure SELECT id, merchant, at, false, record FROM e ON CONFLICT (id) DO UPDATE SET done = false, record = excluded.record;
