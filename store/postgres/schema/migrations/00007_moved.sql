-- When all data has moved to another store, this trigger is enabled, in the transaction that says so in the table move. Then no flush
-- is committed any more, by no version of a node. Until then it is disabled, and costs nothing. A flush with number 0 only says that
-- another one must not be committed.

CREATE FUNCTION refuse_moved() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	place text := (SELECT peer FROM move WHERE direction = 'out' AND ready);
BEGIN
	IF place IS NOT NULL THEN
		RAISE EXCEPTION 'the data has moved to %', place USING ERRCODE = 'MT001';
	END IF;
	RETURN NEW;
END $$;

CREATE TRIGGER moved BEFORE INSERT ON flush FOR EACH ROW WHEN (NEW.seq <> 0) EXECUTE FUNCTION refuse_moved();
ALTER TABLE flush DISABLE TRIGGER moved;
