package postgres

// undoMove are the statements after which a database whose data has moved can be used again.
const undoMove = "ALTER TABLE flush DROP CONSTRAINT moved; ALTER TABLE change DROP CONSTRAINT moved; DELETE FROM move"
