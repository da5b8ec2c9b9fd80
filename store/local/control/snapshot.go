package control

import (
	"io"

	bolt "go.etcd.io/bbolt"
)

// Snapshot is the control data as of one moment. While it is open, changes make the file grow, because no page can be used
// again.
type Snapshot struct {
	Version uint64 // Sum: two snapshots with the same one have the same records

	tx   *bolt.Tx
	sums sums
}

// Snapshot returns the control data as it is now. It calls now before the next change can be made.
func (d *Data) Snapshot(now func()) (Snapshot, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	tx, err := d.db.Begin(false)
	if err != nil {
		return Snapshot{}, err
	}
	now()
	return Snapshot{Version: d.sums.sum(), tx: tx, sums: d.sums}, nil // a change replaces d.sums
}

// Size is how many bytes WriteTo writes.
func (s Snapshot) Size() int64 { return s.tx.Size() }

// WriteTo writes a control.db.
func (s Snapshot) WriteTo(w io.Writer) (int64, error) { return s.tx.WriteTo(w) }

// Close ends the snapshot.
func (s Snapshot) Close() error { return s.tx.Rollback() }
