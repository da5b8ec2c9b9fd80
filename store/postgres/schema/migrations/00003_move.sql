-- A move of all data from another store into this database, or from this database to another store.
CREATE TABLE move (
	direction text PRIMARY KEY, -- in or out
	peer      text NOT NULL,    -- in: the id of the source; out: where the data is now
	at        bigint NOT NULL,  -- in: events up to this receipt are here; out: when the data was moved, in µs since 1970
	ready     boolean NOT NULL  -- in: everything is here
);
