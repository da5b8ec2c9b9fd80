-- Messages of nodes to each other: see store.Shared.Exchange.

-- They live for seconds, so they need not survive a crash, and standbys do not need them.
CREATE UNLOGGED TABLE message (
	node    uuid NOT NULL,
	seq     bigint NOT NULL, -- of the node's messages
	at      timestamptz NOT NULL,
	content bytea NOT NULL,
	PRIMARY KEY (node, seq)
);
